#!/usr/bin/env python3
"""Writes csv.json, json_lines.json and images.json beside this script: small files, and what Python's usual readers
read from them (csv and pandas, json, Pillow). tests/data/corpus_test.cpp reads the same files. Needs pandas, numpy and
Pillow; the tests do not. Where this library refuses what a reader takes, the entry says so (`refused`), with a phrase of
the message."""
import base64
import codecs
import csv
import io
import json
import math
import pathlib
import struct
import warnings
import zlib

import numpy
import pandas
from PIL import Image

HERE = pathlib.Path(__file__).parent
warnings.simplefilter("ignore")


def encoded(data):
    return base64.b64encode(data).decode()


def number_text(value):
    """A double in JSON, which has no NaN and no infinity."""
    value = float(value)
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value.hex()


# CSV -----------------------------------------------------------------------------------------------------------------


def csv_rows(data, delimiter):
    text = data.decode("utf-8-sig")
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=False))
    return [row for row in rows if row]


def csv_numbers(data, delimiter):
    """Per column: pandas' numbers, or None where it reads strings."""
    frame = pandas.read_csv(io.BytesIO(data), sep=delimiter, index_col=False)
    columns = []
    for i in range(frame.shape[1]):
        column = frame.iloc[:, i]
        is_number = column.dtype.kind in "iuf"
        columns.append([number_text(x) for x in column] if is_number else None)
    return columns


def csv_entry(name, data, refused=None, delimiter=",", numbers_refused=()):
    entry = {"name": name, "file": encoded(data), "delimiter": delimiter}
    if refused:
        return {**entry, "refused": refused}
    rows = csv_rows(data, delimiter)
    entry["rows"] = rows
    assert all(len(row) == len(rows[0]) for row in rows), name
    numbers = csv_numbers(data, delimiter) if len(rows) > 1 else [None] * len(rows[0]) if rows else []
    # Columns of numbers that this library refuses.
    entry["numbers"] = [None if i in numbers_refused else column for i, column in enumerate(numbers)]
    assert not rows or len(numbers) == len(rows[0]), name
    return entry


def csv_corpus():
    entries = []
    add = lambda *args, **kwargs: entries.append(csv_entry(*args, **kwargs))
    body = [b"a,b", b"1,2", b"3,4"]
    for end_name, end in (("lf", b"\n"), ("crlf", b"\r\n"), ("cr", b"\r")):
        for mark_name, mark in (("", b""), ("_marked", codecs.BOM_UTF8)):
            add(f"{end_name}{mark_name}", mark + end.join(body) + end)
            add(f"{end_name}{mark_name}_open_end", mark + end.join(body))
            add(f"{end_name}{mark_name}_blank_lines", mark + end + (end + end).join(body) + end + end)
            add(f"{end_name}{mark_name}_quoted_header", mark + end.join([b'"a","b ""c"""'] + body[1:]))
        add(f"{end_name}_in_quotes", end.join([b"a,b", b'"x' + end + b'y",2', b'z,"' + end + b'"']) + end)
        add(f"{end_name}_header_only", b"a,b" + end)
        add(f"{end_name}_quoted_empty_column", end.join([b"a", b'""', b"1"]) + end)
    add("mixed_ends", b"a,b\r1,2\r\n3,4\n5,6")
    add("lf_then_cr", b"a,b\n\r1,2\n\r3,4")
    for name, row in {
        "doubled": b'"a ""b""",1',
        "only_doubled": b'"""",1',
        "quote_inside": b'a"b,1',
        "quote_at_end": b'ab",1',
        "after_quote": b'"ab"cd,1',
        "after_quote_again": b'"ab"c"d,1',
        "space_before_quote": b' "ab",1',
        "space_after_quote": b'"ab" ,1',
        "delimiter_in_quotes": b'"a,b",1',
        "empty_quotes": b'"",1',
        "three_quotes": b'"a""",1',
        "tab": b"a\tb,1",
        "spaces": b"  a  ,1",
        "semicolon": b"a;b,1",
        "backslash": b'a\\"b,1',
        "apostrophe": b"'a,1",
        "unicode": "caf\u00e9 \u4e2d \U0001f600,1".encode(),
        "separators": "a\u2028b\u2029c\u0085d,1".encode(),
        "vertical": b"a\x0bb\x0cc,1",
        "escape": b"\x1b[2J,1",
        "long": b"x" * 5000 + b",1",
        "hash": b"#a,1",
    }.items():
        add("field_" + name, b"t,n\n" + row + b"\n")
    for delimiter in "\t;|: ":
        mark = delimiter.encode()
        add(f"delimiter_{ord(delimiter)}", b"a" + mark + b"b\n1" + mark + b'"2' + mark + b'3"\n', delimiter=delimiter)
    good = [
        "0", "-0", "1", "+1", "-1", "007", "1.5", "-1.5", "+1.5", ".5", "-.5", "5.", "1e5", "1E5", "1e+5", "1e-5",
        "1.5e3", "123456789012345678", "0.1", "0.30000000000000004", "3.141592653589793", "2.2250738585072014e-308",
        "1e22", "9007199254740993", "1e-7", "inf", "-inf", "+inf", "Inf", "INF", "infinity", "Infinity", "-Infinity",
        "nan", "NaN", "NA", "N/A", "n/a", "null", "NULL", "None", "<NA>", "#N/A", "-nan", "-NaN", "1.#IND", "1.#QNAN", "",
        " 1", "1 ", " 1.5 ", "1e-400", "-1e-400", "0e999", "1e400", "-1e400", "0.000e-999",
    ]
    for text in good:
        add(f"number '{text}'", f"t,n\nx,{text}\ny,2.5\n".encode())
    # Strings to both Python readers, or to pandas.
    for text in [
        "+-5", "-+5", "++5", "--5", "1_000", "0x10", "0b1", "0o7", "1,5e", "1e", "e5", ".", "-", "+", "1.2.3", "1 2", "$1", "1%",
        "1d5", "1f", "nan(1)", "nanx", "infin", "NAN.", "#N", "nil", "- 1", "\u0661", "1\u00a0", "--", "1e5.5", "0x1p3", "True1",
        " NA", "NA ", "  ",
    ]:
        add(f"text '{text}'", f't,n\nx,"{text}"\ny,2.5\n'.encode())
    # Digits that pandas rounds by its own fast algorithm are compared elsewhere.
    refuse = {
        "open_quote": (b'a,b\n1,"2\n', "a quote is opened"),
        "open_quote_at_end": (b'a,b\n1,"', "a quote is opened"),
        "more_fields": (b"a,b\n1,2,3\n", "has 3 fields"),
        "fewer_fields": (b"a,b\n1\n", "has 1 fields"),
        "trailing_delimiter": (b"a,b\n1,2,\n", "has 3 fields"),
        "white_line": (b"a,b\n \n1,2\n", "has 1 fields"),
        "latin_1": (b"a,b\ncaf\xe9,2\n", "not UTF-8"),
        "latin_1_header": (b"\xe9,b\n1,2\n", "not UTF-8"),
        "cut_character": (b"a,b\n\xe4\xb8,2\n", "not UTF-8"),
        "overlong": (b"a,b\n\xc0\xaf,2\n", "not UTF-8"),
        "surrogate": (b"a,b\n\xed\xa0\x80,2\n", "not UTF-8"),
        "utf_16": ("a,b\n1,2\n".encode("utf-16"), "is UTF-16"),
        "utf_16_big": (codecs.BOM_UTF16_BE + "a,b\n1,2\n".encode("utf-16-be"), "is UTF-16"),
        "utf_16_unmarked": ("a,b\n1,2\n".encode("utf-16-le"), "zero byte"),
        "utf_32": ("a,b\n1,2\n".encode("utf-32"), "is UTF-16"),
        "zero_byte": (b"a,b\n1\x00,2\n", "zero byte"),
    }
    for name, (data, phrase) in refuse.items():
        add(name, data, refused=phrase)
    add("one_column", b"a\n1\n2\n")
    add("empty_fields", b"a,b,c\n,,\n1,,3\n")
    add("empty_name", b",b\n1,2\n")
    entries.append({"name": "empty", "file": "", "delimiter": ",", "rows": [], "numbers": []})
    return entries


# JSON lines ----------------------------------------------------------------------------------------------------------


def json_value(value):
    """The value of a key, in JSON that holds every number."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return {"int": str(value), "double": number_text(value) if abs(value) < 2**1023 else "inf"}
    if isinstance(value, float):
        return {"double": number_text(value)}
    if isinstance(value, list):
        return [json_value(item) for item in value]
    return {"object": {key: json_value(item) for key, item in value.items()}}


def json_entry(name, data, refused=None):
    entry = {"name": name, "file": encoded(data)}
    if refused:
        return {**entry, "refused": refused}
    text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig")
    entry["records"] = [json_value(json.loads(line))["object"] for line in text if line.strip()]
    return entry


def json_corpus():
    entries = []
    add = lambda *args, **kwargs: entries.append(json_entry(*args, **kwargs))
    lines = [b'{"a": 1}', b'{"a": "x"}', b'{"b": [1, 2]}']
    for end_name, end in (("lf", b"\n"), ("crlf", b"\r\n"), ("cr", b"\r")):
        for mark_name, mark in (("", b""), ("_marked", codecs.BOM_UTF8)):
            add(f"{end_name}{mark_name}", mark + end.join(lines) + end)
            add(f"{end_name}{mark_name}_open_end", mark + end.join(lines))
            add(f"{end_name}{mark_name}_blank_lines", mark + end + b"  " + end + (end + end).join(lines) + end)
    add("empty", b"")
    add("only_mark", codecs.BOM_UTF8)
    for text in [
        "0", "-0", "1", "-1", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "18446744073709551615",
        "18446744073709551616", "123456789012345678901234567890", "1.0", "-0.0", "1.5", "1e5", "1E5", "1e+5", "1e-5", "0.1",
        "1e-400", "5e-324", "2.2250738585072014e-308", "1.7976931348623157e308", "9007199254740993", "0e999",
        "NaN", "Infinity", "-Infinity", "[NaN, 1, -Infinity]", "[[Infinity], [NaN]]", '{"x": NaN}',
        "true", "false", "null", '""', '"a"', '"\\""', '"\\\\"', '"\\/"', '"\\b\\f\\n\\r\\t"', '"\\u00e9"', '"\\u0000"', '"\\u0001NaN"',
        '"\\ud83d\\ude00"', '"\u00e9\u4e2d\U0001f600"', '"\\u2028"', '"NaN"', '"\\"NaN"', '"a NaN, Infinity"', "[]", "[[]]", "[1, [2, 3]]", "{}",
        '{"x": {"y": [1]}}', "[1,2,3]", " [ 1 , 2 ] ", '["a", "b"]', "[1, 2.5]", "[true, 1]", "[1, null]",
    ]:
        add(f"value {text}", f'{{"v": {text}}}\n'.encode())
    add("duplicate_keys", b'{"a": 1, "b": 2, "a": 3}\n')
    add("duplicate_types", b'{"a": [1], "a": "x"}\n')
    add("empty_key", b'{"": 1}\n')
    add("spaces", b' \t{ "a" : 1 } \t\n')
    add("escaped_key", b'{"\\u0061": 1}\n')
    add("del", b'{"a": "\x7f"}\n')
    refuse = {
        "number": (b"1\n", "must be an object"),
        "array": (b"[1]\n", "must be an object"),
        "constant": (b"NaN\n", "must be an object"),
        "two_values": (b'{"a": 1} {"b": 2}\n', "column"),
        "open_object": (b'{"a": 1\n', "column"),
        "split_over_lines": (b'{"a":\n1}\n', "column"),
        "split_by_cr": (b'{"a":\r1}\n', "column"),
        "trailing_comma": (b'{"a": 1,}\n', "column"),
        "single_quotes": (b"{'a': 1}\n", "column"),
        "comment": (b'{"a": 1} // x\n', "column"),
        "plus": (b'{"a": +1}\n', "column"),
        "leading_zero": (b'{"a": 01}\n', "column"),
        "bare_point": (b'{"a": .5}\n', "column"),
        "open_point": (b'{"a": 5.}\n', "column"),
        "hex": (b'{"a": 0x10}\n', "column"),
        "lower_nan": (b'{"a": nan}\n', "column"),
        "inf": (b'{"a": inf}\n', "column"),
        "minus_nan": (b'{"a": -NaN}\n', "column"),
        "nan_suffix": (b'{"a": NaNs}\n', "column"),
        "nan_key": (b'{NaN: 1}\n', "column"),
        "control": (b'{"a": "\x01"}\n', "column"),
        "tab_in_string": (b'{"a": "\t"}\n', "column"),
        "bad_escape": (b'{"a": "\\x"}\n', "column"),
        "bad_utf_8": (b'{"a": "\xff"}\n', "column"),
        "latin_1": (b'{"a": "caf\xe9"}\n', "column"),
        "mark_inside": (b'{"a": 1}\n\xef\xbb\xbf{"a": 2}\n', "byte order mark"),
        "utf_16": ('{"a": 1}\n'.encode("utf-16"), "is UTF-16"),
        "utf_16_unmarked": ('{"a": 1}\n'.encode("utf-16-le"), "column"),
        # Python takes these three.
        "lone_surrogate": (b'{"a": "\\ud800"}\n', "surrogate"),
        "swapped_surrogates": (b'{"a": "\\ude00\\ud83d"}\n', "surrogate"),
        "overflow": (b'{"a": 1e400}\n', "number overflow"),
    }
    for name, (data, phrase) in refuse.items():
        add(name, data, refused=phrase)
    return entries


# Images --------------------------------------------------------------------------------------------------------------


def picture(mode, width=7, height=5, seed=0):
    random = numpy.random.RandomState(seed)
    channels = {"1": 1, "L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4}[mode]
    values = random.randint(0, 256, (height, width, channels)).astype(numpy.uint8)
    if mode == "1":
        return Image.fromarray(values[..., 0]).convert("1")
    return Image.fromarray(values[..., 0] if channels == 1 else values, mode if mode == "CMYK" else None)


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def png(width, height, depth, colour, rows, extra=b"", interlace=0):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + extra + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )


def chunk_of(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bmp(width, height, depth, palette, rows, compression=0, num_colours=None):
    offset = 54 + len(palette)
    head = b"BM" + struct.pack("<IHHI", offset + len(rows), 0, 0, offset)
    colours = len(palette) // 4 if num_colours is None else num_colours
    return head + struct.pack("<IiiHHIIiiII", 40, width, height, 1, depth, compression, len(rows), 0, 0, colours, 0) + palette + rows


def psd(width, height, channels, planes, depth=8):
    head = b"8BPS" + struct.pack(">H6xHIIHH", 1, channels, height, width, depth, 3)
    return head + struct.pack(">IIIH", 0, 0, 0, 0) + b"".join(planes)


def image_entry(name, data, refused=None, ending="", tolerance=0, skipped_column=None):
    entry = {"name": name, "file": encoded(data), "ending": ending}
    if refused:
        return {**entry, "refused": refused}
    image = Image.open(io.BytesIO(data))
    image.load()
    # As torchvision's loader converts images.
    colours = image.convert("RGB")
    entry["rgb"] = encoded(numpy.asarray(colours).tobytes())
    entry["grey"] = encoded(numpy.asarray(colours.convert("L")).tobytes())
    entry["alpha"] = encoded(numpy.asarray(image.convert("RGBA"))[..., 3].tobytes())
    assert (numpy.asarray(image.convert("RGBA"))[..., :3] == numpy.asarray(colours)).all(), name
    entry["size"] = [image.height, image.width]
    if tolerance:
        entry["tolerance"] = tolerance
    if skipped_column is not None:
        entry["skipped_column"] = skipped_column
    return entry


def every_cut(name, data, entries, step=1, keep=None):
    """The file cut off at every length, none of which may be read, but for its last `keep` bytes."""
    entries.append({"name": name, "file": encoded(data), "ending": "", "cuts": len(data) - (keep or 0), "step": step})


def image_corpus():
    entries = []
    add = lambda *args, **kwargs: entries.append(image_entry(*args, **kwargs))
    for mode in ("1", "L", "LA", "RGB", "RGBA"):
        add(f"png_{mode}", saved(picture(mode), "PNG"))
        add(f"png_{mode}_one_pixel", saved(picture(mode, 1, 1, 1), "PNG"))
        add(f"png_{mode}_wide", saved(picture(mode, 33, 2, 2), "PNG"))
    for colours in (2, 4, 16, 200):
        indexed = picture("RGB", 16, 16).quantize(colours)
        add(f"png_palette_{colours}", saved(indexed, "PNG"))
        add(f"png_palette_{colours}_transparent", saved(indexed, "PNG", transparency=1))
        add(f"gif_{colours}", saved(indexed, "GIF"))
        add(f"gif_{colours}_transparent", saved(indexed, "GIF", transparency=1))
        add(f"gif_{colours}_interlaced", saved(indexed, "GIF", interlace=1))
        add(f"bmp_palette_{colours}", saved(indexed, "BMP"))
    random = numpy.random.RandomState(7)
    for depth in (1, 2, 4, 8):
        row_bytes = (5 * depth + 7) // 8
        rows = b"".join(b"\0" + random.bytes(row_bytes) for _ in range(3))
        add(f"png_grey_{depth}", png(5, 3, depth, 0, rows))
        palette = chunk_of(b"PLTE", random.bytes(3 * 2**depth))
        add(f"png_indexed_{depth}", png(5, 3, depth, 3, rows, palette))
        alpha = palette + chunk_of(b"tRNS", bytes(range(1, 1 + 2**depth)) if depth < 8 else bytes(range(256)))
        add(f"png_indexed_{depth}_alpha", png(5, 3, depth, 3, rows, alpha))
    short = chunk_of(b"PLTE", random.bytes(6))
    add("png_palette_short_unused", png(4, 1, 8, 3, b"\0\0\1\1\0", short))
    add("png_palette_short", png(4, 1, 8, 3, b"\0\0\1\2\0", short), refused="colours that its palette lacks")
    wide = lambda channels: b"".join(b"\0" + random.bytes(10 * channels) for _ in range(3))
    add("png_rgb_16", png(5, 3, 16, 2, wide(3)))
    add("png_rgba_16", png(5, 3, 16, 6, wide(4)))
    add("png_grey_alpha_16", png(5, 3, 16, 4, wide(2)))
    add("png_grey_16", png(5, 3, 16, 0, wide(1)), refused="grey image of 16 bits")
    add("png_rgb_transparent", png(2, 1, 8, 2, b"\0\1\2\3\4\5\6", chunk_of(b"tRNS", b"\0\1\0\2\0\3")))
    add("png_gamma", png(2, 1, 8, 0, b"\0\1\2", chunk_of(b"gAMA", struct.pack(">I", 45455))))
    add("png_trailing", saved(picture("RGB"), "PNG") + b"more")
    whole = saved(picture("RGB"), "PNG")
    add("png_no_pixels", png(0, 3, 8, 0, b""), refused="pixels")
    damaged = bytearray(whole)
    damaged[whole.index(b"IDAT") + 10] ^= 1
    add("png_checksum", bytes(damaged), refused="the checksum of its chunk IDAT is wrong")
    add("png_few_rows", png(5, 3, 8, 0, b"\0" * 12), refused="as PNG")
    for mode in ("L", "RGB"):
        for quality in (50, 95):
            for sampling in (0, 1, 2):
                data = saved(picture(mode, 16, 16, 3).resize((20, 20), Image.BICUBIC), "JPEG", quality=quality, subsampling=sampling)
                # The decoder mixes chroma the wrong way round in one column.
                skipped = 18 if (mode, sampling) == ("RGB", 1) else None
                add(f"jpeg_{mode}_{quality}_{sampling}", data, tolerance=3, skipped_column=skipped)
        add(f"jpeg_{mode}_progressive", saved(picture(mode, 16, 16, 4).resize((20, 20), Image.BICUBIC), "JPEG", progressive=True), tolerance=3)
    exif = Image.Exif()
    exif[0x0112] = 6
    add("jpeg_orientation", saved(picture("RGB", 16, 8).resize((32, 16), Image.BICUBIC), "JPEG", exif=exif), tolerance=3)
    for mode in ("1", "L", "RGB"):
        for width in (1, 2, 3, 4, 5):
            add(f"bmp_{mode}_{width}", saved(picture(mode, width, 3, width), "BMP"))
    add("bmp_rgba", saved(picture("RGBA"), "BMP"))
    add("bmp_32", bmp(3, 2, 32, b"", random.bytes(24)))
    add("bmp_top_down", bmp(2, -2, 24, b"", bytes(range(6)) + b"\0\0" + bytes(range(10, 16)) + b"\0\0"))
    add("bmp_few_colours", bmp(4, 1, 8, random.bytes(12), bytes([0, 1, 2, 0])))
    add("bmp_4_bits", bmp(3, 2, 4, random.bytes(64), bytes([0x12, 0x30, 0, 0, 0xFE, 0x10, 0, 0])))
    add("bmp_missing_colour", bmp(4, 1, 8, random.bytes(12), bytes([0, 1, 2, 3])), refused="colours that its palette lacks")
    add("bmp_16", bmp(2, 1, 16, b"", random.bytes(4)), refused="16 bits per pixel")
    add("bmp_compressed", bmp(2, 1, 8, random.bytes(1024), b"\2\0\0\1", 1), refused="compressed")
    for mode in ("L", "LA", "RGB", "RGBA"):
        for compression in (None, "tga_rle"):
            data = saved(picture(mode), "TGA", compression=compression)
            add(f"tga_{mode}_{compression}", data, ending=".tga")
    add("tga_not_named", saved(picture("RGB"), "TGA"), refused="and not named .tga")
    add("tga_palette", saved(picture("RGB", 16, 16).quantize(16), "TGA"), ending=".tga")
    for mode in ("L", "RGB"):
        kind = "5" if mode == "L" else "6"
        add(f"pnm_{mode}", saved(picture(mode), "PPM"))
        channels = 1 if mode == "L" else 3
        for largest in (1, 2, 15, 100, 127, 200, 254):
            values = bytes(int(v) for v in random.randint(0, largest + 1, 6 * channels))
            add(f"pnm_{mode}_{largest}", f"P{kind} 3 2 {largest}\n".encode() + values)
        add(f"pnm_{mode}_beyond", f"P{kind} 3 2 100\n".encode() + random.bytes(6 * channels))
        body = random.bytes(2 * channels)
        for name, head in {
            "comments": f"P{kind}\n# one\n2 # two\n1\n# three\n255\n",
            "comment_in_number": f"P{kind}\n2#x\n 1 255\n",
            "tabs": f"P{kind}\t2\r1\v255\f",
            "crlf": f"P{kind}\n2 1\n255\r",
            "zeros": f"P{kind} 002 01 0255 ",
        }.items():
            add(f"pnm_{mode}_{name}", head.encode() + body)
        add(f"pnm_{mode}_trailing", f"P{kind} 2 1 255 ".encode() + body + b"more")
        add(f"pnm_{mode}_truncated", f"P{kind} 4 4 255 ".encode() + body, refused="it is truncated")
        add(f"pnm_{mode}_no_pixels", f"P{kind} 0 4 255 ".encode(), refused="0 by 4 pixels")
        add(f"pnm_{mode}_negative", f"P{kind} -2 1 255 ".encode() + body, refused="-2 by 1 pixels")
        add(f"pnm_{mode}_largest", f"P{kind} 2 1 65536 ".encode() + body, refused="largest value")
        add(f"pnm_{mode}_none", f"P{kind} 2 1 0 ".encode() + body, refused="largest value")
        add(f"pnm_{mode}_word", f"P{kind} 2 one 255 ".encode() + body, refused="in place of a number")
    add("pnm_rgb_16", b"P6 2 1 65535 " + random.bytes(12))
    add("pnm_rgb_10_bits", b"P6 2 1 1023 " + b"".join(struct.pack(">H", int(v)) for v in random.randint(0, 1024, 6)))
    add("pnm_grey_16", b"P5 2 1 65535 " + random.bytes(4), refused="grey image of 16 bits")
    add("pnm_plain", b"P2 2 1 255 1 2 ", refused="kind P2")
    add("pnm_bits", b"P4 8 1 \xff", refused="kind P4")
    planes = [random.bytes(6) for _ in range(4)]
    add("psd_rgb", psd(3, 2, 3, planes[:3]))
    add("psd_rgba", psd(3, 2, 4, planes), refused="only three channels of 8 bits")
    add("psd_16", psd(3, 2, 3, [p + p for p in planes[:3]], 16), refused="only three channels of 8 bits")
    add("webp", saved(picture("RGB"), "WEBP"), refused="it is a WebP file")
    add("tiff", saved(picture("RGB"), "TIFF"), refused="it is a TIFF file")
    add("empty", b"", refused="it is not a JPEG")
    add("text", b"hello, world", refused="it is not a JPEG")
    for mode in ("L", "RGB", "RGBA"):
        every_cut(f"cut_png_{mode}", saved(picture(mode), "PNG"), entries)
    every_cut("cut_png_palette", saved(picture("RGB").quantize(16), "PNG"), entries)
    every_cut("cut_gif", saved(picture("RGB").quantize(16), "GIF"), entries, keep=3)
    every_cut("cut_bmp_8", saved(picture("L"), "BMP"), entries, step=7, keep=2)
    every_cut("cut_bmp_24", saved(picture("RGB"), "BMP"), entries)
    every_cut("cut_pnm", saved(picture("RGB"), "PPM"), entries)
    every_cut("cut_pgm", saved(picture("L"), "PPM"), entries)
    every_cut("cut_psd", psd(3, 2, 3, planes[:3]), entries)
    every_cut("cut_jpeg", saved(picture("RGB", 16, 16), "JPEG"), entries)
    every_cut("cut_jpeg_grey", saved(picture("L", 16, 16), "JPEG"), entries)
    every_cut("cut_jpeg_progressive", saved(picture("RGB", 16, 16), "JPEG", progressive=True), entries)
    tga = saved(picture("RGB"), "TGA")
    entries.append({"name": "cut_tga", "file": encoded(tga[: 18 + 7 * 5 * 3]), "ending": ".tga", "cuts": 18 + 7 * 5 * 3, "step": 1})
    return entries


def main():
    for name, entries in (("csv", csv_corpus()), ("json_lines", json_corpus()), ("images", image_corpus())):
        names = [entry["name"] for entry in entries]
        assert len(names) == len(set(names)), name
        lines = ",\n".join(json.dumps(entry) for entry in entries)
        (HERE / f"{name}.json").write_text(f"[\n{lines}\n]\n")
        print(name, len(entries))


if __name__ == "__main__":
    main()
