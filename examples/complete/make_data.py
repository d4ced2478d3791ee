#!/usr/bin/env python3
"""Makes small data sets for the programs of this directory.

usage: make_data.py images DIRECTORY [IMAGES_PER_CLASS]   directories train and val, with images of three shapes
       make_data.py series FILE [DAYS]                    an hourly table: temperature, and the power that a town uses
"""
import csv
import datetime
import math
import random
import sys
from pathlib import Path

SIZE = 32
SHAPES = {
    "circle": lambda x, y: x * x + y * y < 1,
    "cross": lambda x, y: min(abs(x), abs(y)) < 0.3 and max(abs(x), abs(y)) < 1,
    "square": lambda x, y: max(abs(x), abs(y)) < 0.8,
}


def image(is_inside, draw):
    """Returns the bytes of a PPM file: a shape of any colour, place and size on a noisy ground of another colour."""
    radius = draw.uniform(5, 9)
    left, top = draw.uniform(radius, SIZE - radius), draw.uniform(radius, SIZE - radius)
    ground = [draw.randrange(100) for _ in range(3)]
    colour = [draw.randrange(150, 236) for _ in range(3)]
    pixels = bytearray()
    for row in range(SIZE):
        for column in range(SIZE):
            inside = is_inside((column - left) / radius, (row - top) / radius)
            pixels += bytes(value + draw.randrange(20) for value in (colour if inside else ground))
    return b"P6 %d %d 255\n" % (SIZE, SIZE) + bytes(pixels)


def make_images(directory, count=120):
    draw = random.Random(1)
    for part, number in (("train", count), ("val", max(1, count // 3))):
        for name, is_inside in SHAPES.items():
            folder = Path(directory, part, name)
            folder.mkdir(parents=True, exist_ok=True)
            for index in range(number):
                (folder / f"{index}.ppm").write_bytes(image(is_inside, draw))


def make_series(file, days=365):
    """Power has a rhythm of days and weeks, rises when it is cold, and is noisy; a few values are missing."""
    draw = random.Random(2)
    weather = 0.0
    with open(file, "w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["time", "temperature", "power"])
        for hour in range(24 * days):
            time = datetime.datetime(2025, 1, 1) + datetime.timedelta(hours=hour)
            weather = 0.99 * weather + draw.gauss(0, 0.25)
            day = math.sin((time.hour - 9) * math.pi / 12)
            temperature = 8 + weather + 5 * day
            power = 50 + 12 * day - (10 if time.weekday() >= 5 else 0) - 1.5 * (temperature - 8) + draw.gauss(0, 1)
            writer.writerow([time.isoformat(), f"{temperature:.2f}", "" if draw.random() < 0.005 else f"{power:.2f}"])


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("images", "series"):
        sys.exit(__doc__)
    {"images": make_images, "series": make_series}[sys.argv[1]](sys.argv[2], *map(int, sys.argv[3:]))
