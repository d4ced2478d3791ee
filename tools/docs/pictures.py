#!/usr/bin/env python3
"""Draws the pictures of the pages: docs/images/{rooms,step,save,mesh,tiers}.svg.

usage: pictures.py ROOT           (writes them)
       pictures.py ROOT --check   (fails if one differs; rooms.svg follows the table in docs/develop/architecture.md)
"""
import re
import sys
from html import escape
from pathlib import Path

STYLE = (
    "text{font:12.5px system-ui,sans-serif;fill:#1f2328}.small{font-size:11px}.bold{font-weight:600}.page{fill:#fff}"
    ".box{fill:#f6f8fa;stroke:#afb8c1}.blue{fill:#ddf4ff;stroke:#54aeff}.green{fill:#dafbe1;stroke:#4ac26b}"
    ".gold{fill:#fff8c5;stroke:#d4a72c}.red{fill:#ffebe9;stroke:#ff8182}.line{stroke:#57606a;fill:none}.tip{fill:#57606a}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}.box{fill:#161b22;stroke:#484f58}"
    ".blue{fill:#0c2d6b;stroke:#388bfd}.green{fill:#033a16;stroke:#2ea043}.gold{fill:#341a00;stroke:#9e6a03}"
    ".red{fill:#490202;stroke:#da3633}.line{stroke:#9198a1}.tip{fill:#9198a1}}")
WIDTH = 720


class Picture:
    def __init__(self, title, height):
        self.title, self.height, self.parts = title, height, []

    def text(self, x, y, text, kind="", anchor="middle"):
        self.parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>')

    def box(self, x, y, width, height, text="", kind="box", small=""):
        """A box with a line of text, and one in small letters, in its middle."""
        self.parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"/>')
        middle = y + height / 2 + 4.5
        if text:
            self.text(x + width / 2, middle - (8 if small else 0), text)
        if small:
            self.text(x + width / 2, middle + 6, small, "small")

    def arrow(self, x, y, to_x, to_y, dashed=False):
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(f'<path class="line"{dash} marker-end="url(#tip)" d="M{x:g} {y:g}L{to_x:g} {to_y:g}"/>')

    def svg(self):
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{self.height}" viewBox="0 0 {WIDTH} {self.height}" role="img"'
        tip = '<marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker>'
        return "\n".join([
            f'{head} aria-label="{escape(self.title)}">', f"<style>{STYLE}</style><defs>{tip}</defs>",
            f'<rect class="page" width="{WIDTH}" height="{self.height}" rx="6"/>', *self.parts, "</svg>", ""])


def rooms(root):
    """The rooms by layer: each may include rooms below it only."""
    page = (root / "docs/develop/architecture.md").read_text()
    table = page[page.index("| room | holds | may include |"):].split("\n\n")[0]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()[2:]]
    includes = {row[0].strip("`"): re.findall(r"[a-z_]+", row[2]) for row in rows}
    includes["train"] = [name for name in includes if name not in ("train", "cli")]
    level = {}

    def level_of(name):
        if name not in level:
            level[name] = 1 + max((level_of(other) for other in includes[name] if other in includes), default=-1)
        return level[name]

    top = max(level_of(name) for name in includes)
    picture = Picture("Rooms by layer", 50 + (top + 1) * 40)
    picture.text(16, 24, "Rooms: each includes only what lies below it", "bold", "start")
    plain = {row[0].strip("`") for row in rows if "no LibTorch" in row[1]}
    for number in range(top + 1):
        own = [name for name in includes if level[name] == number]
        width = (WIDTH - 32 - 8 * (len(own) - 1)) / len(own)
        for place, name in enumerate(own):
            picture.box(16 + place * (width + 8), 40 + (top - number) * 40, width, 32, name, "green" if name in plain else "blue")
    picture.box(470, 12, 14, 14, kind="blue")
    picture.text(490, 24, "with LibTorch", "small", "start")
    picture.box(580, 12, 14, 14, kind="green")
    picture.text(600, 24, "without", "small", "start")
    return picture


def step(_):
    picture = Picture("A training step on two ranks", 250)
    picture.text(16, 24, "A step on two ranks: messages travel while the backward computes", "bold", "start")
    for rank, y in enumerate((48, 148)):
        picture.text(16, y + 21, f"rank {rank}", anchor="start")
        picture.box(70, y, 90, 32, "batch", "gold", "its own rows")
        picture.box(166, y, 130, 32, "forward", "blue", "model(inputs)")
        picture.box(302, y, 210, 32, "backward", "blue", "accelerator.backward(loss)")
        picture.box(518, y, 76, 32, "clip", "blue", "global norm")
        picture.box(600, y, 104, 32, "step", "green", "optimizer.step()")
    for number in range(4):
        x = 330 + 48 * number
        picture.box(x, 98, 42, 32, kind="red")
        picture.text(x + 21, 118, f"mean {number + 1}", "small")
        picture.arrow(x + 21, 80, x + 21, 97)
        picture.arrow(x + 21, 148, x + 21, 131)
    picture.text(16, 118, "gradients, in buckets, last layer first", "small", "start")
    picture.text(16, 208, "With accumulation, the micro-steps before the last skip the messages, the clipping and the step.", "small", "start")
    picture.text(16, 228, "If the model is sharded, parameters are gathered before each layer, and each rank keeps its rows of the mean.", "small", "start")
    return picture


def save(_):
    picture = Picture("How a checkpoint is saved", 290)
    picture.text(16, 24, "save_state(): the name appears when everything is on the disk", "bold", "start")
    names = ("collect", "write", "manifest", "rename", "delete")
    says = ("state of this rank", "16 MiB, hash, sync", "checksums, sync", "one atomic step", "beyond total_limit")
    for number, (name, said) in enumerate(zip(names, says)):
        x = 80 + 126 * number
        picture.box(x, 44, 116, 36, name, "green" if name == "rename" else "blue", said)
        if number:
            picture.arrow(x - 10, 62, x - 1, 62)
        picture.text(x + 58, 96, "all ranks" if number < 2 else "the leader", "small")
    picture.text(16, 66, "steps", anchor="start")
    picture.text(16, 140, "on disk", anchor="start")
    picture.box(80, 116, 368, 60, kind="gold")
    picture.text(90, 136, ".checkpoint_7.saving-4711-1/", "small bold", "start")
    picture.text(90, 154, "model.safetensors  optimizer.safetensors  rank-00000 ...", "small", "start")
    picture.text(90, 169, "hidden: a crash here leaves the previous checkpoint as it was", "small", "start")
    picture.arrow(448, 146, 478, 146)
    picture.box(480, 116, 224, 60, kind="green")
    picture.text(490, 136, "checkpoint_7/", "small bold", "start")
    picture.text(490, 154, "complete, with manifest.json", "small", "start")
    picture.text(490, 169, "what resume() takes", "small", "start")
    picture.text(16, 216, "training", anchor="start")
    picture.box(80, 198, 116, 30, "copy to memory", "red")
    picture.box(206, 198, 498, 30, "next steps", "box")
    picture.text(16, 250, "With .asynchronous = true, training waits for the first step only; the others run on a thread.", "small", "start")
    picture.text(16, 270, "Without it, save_state() returns after the last.", "small", "start")
    return picture


def mesh(_):
    picture = Picture("Eight ranks as a mesh", 300)
    picture.text(16, 24, "8 ranks = 2 replicas x 2 shards x 2 tensor: rank numbers vary fastest along tensor", "bold", "start")
    for replica in range(2):
        left = 20 + replica * 350
        picture.box(left, 44, 330, 180, kind="box")
        picture.text(left + 12, 62, f"replica {replica}", "small bold", "start")
        for shard in range(2):
            picture.text(left + 12, 98 + 76 * shard, f"shard {shard}", "small", "start")
            for tensor in range(2):
                rank = replica * 4 + shard * 2 + tensor
                x, y = left + 70 + tensor * 126, 74 + shard * 76
                picture.box(x, y, 110, 42, f"rank {rank}", "blue" if tensor == 0 else "green", f"batch {replica * 2 + shard}")
            picture.arrow(left + 181, 95 + 76 * shard, left + 195, 95 + 76 * shard)
            picture.arrow(left + 195, 95 + 76 * shard, left + 181, 95 + 76 * shard)
        for tensor in range(2):
            x = left + 125 + 126 * tensor
            picture.arrow(x, 117, x, 149)
            picture.arrow(x, 149, x, 117)
    picture.arrow(352, 134, 368, 134)
    picture.arrow(368, 134, 352, 134)
    picture.text(16, 248, "tensor (sideways): halves of each layer, one batch; results are exchanged in every layer", "small", "start")
    picture.text(16, 266, "shard (up and down): different batches; each rank keeps half of the parameters, gathered layer by layer", "small", "start")
    picture.text(16, 284, "replicate (between the frames): different batches; only gradients are averaged, once per step", "small", "start")
    return picture


def tiers(_):
    picture = Picture("Where weights lie while a model runs", 250)
    picture.text(16, 24, "A model larger than its device: layers come as they are needed, and go", "bold", "start")
    for number, (name, first, last, kind) in enumerate((("device", 5, 6, "green"), ("memory", 0, 5, "gold"), ("disk", 6, 11, "box"))):
        y = 44 + 64 * number
        picture.text(16, y + 20, name, "bold", "start")
        for layer in range(first, last + 1):
            computes = number == 0 and layer == first
            picture.box(110 + 50 * layer, y, 44, 32, str(layer), "blue" if computes else kind)
    picture.text(110, 64, "layer 5 computes, layer 6 arrives", "small", "start")
    picture.text(470, 64, "at most prefetch_memory", "small", "start")
    picture.text(470, 128, 'layers that the map puts on "cpu"', "small", "start")
    picture.text(110, 192, 'those on "disk": a folder, or the checkpoint', "small", "start")
    picture.arrow(382, 107, 382, 78)
    picture.arrow(432, 171, 432, 78)
    picture.text(16, 232, "Training beyond memory works alike: gradients and optimizer state of a layer travel with it, and back.", "small", "start")
    return picture


def main():
    root = Path(sys.argv[1])
    wrong = []
    for draw in (rooms, step, save, mesh, tiers):
        path, text = root / f"docs/images/{draw.__name__}.svg", draw(root).svg()
        if sys.argv[2:] == ["--check"]:
            if not path.exists() or path.read_text() != text:
                wrong.append(f"{path} differs: run tools/docs/pictures.py .")
        else:
            path.write_text(text)
    print(*wrong, "5 pictures", sep="\n")
    sys.exit(bool(wrong))


main()
