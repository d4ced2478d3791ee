"""Makes a tracker's calls in its own Python package.

The parent writes a JSON object per line to the socket whose descriptor is the
first argument, and gets one per line back: {"ok": ...} or {"error": ...,
"missing": ...}. Standard output and error belong to the package.
"""
import base64
import importlib
import json
import os
import signal
import socket
import sys


class Missing(Exception):
    """The package is not installed."""


def load(name):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise Missing(name) from None


def number(value):
    return isinstance(value, (int, float))


def arrays(images):
    """The batch as an array, and its images with channels last."""
    numpy = load("numpy")
    batch = numpy.frombuffer(base64.b64decode(images["values"]), images["dtype"]).reshape(images["shape"])
    layout = images["layout"]
    if layout == "NCHW":
        return batch, batch.transpose((0, 2, 3, 1))
    if layout == "CHW":
        return batch, [batch.transpose((1, 2, 0))]
    return batch, batch if layout == "NHWC" else [batch]


class Tracker:
    """What is the same for wandb, trackio and swanlab; others replace it."""

    def __init__(self, package, project, logging_dir, init_kwargs):
        self.package = load(package)
        self.project, self.logging_dir, self.init_kwargs = project, logging_dir, init_kwargs
        self.begin()

    def begin(self):
        self.run = self.package.init(project=self.project, **self.init_kwargs)

    def config(self, values):
        self.package.config.update(values, allow_val_change=True)

    def log(self, values, step, options):
        self.run.log(values, step=step, **options)

    def images(self, name, images, step, options):
        if not hasattr(self.package, "Image"):
            return False
        self.run.log({name: [self.package.Image(image) for image in arrays(images)[1]]}, step=step, **options)

    def table(self, name, columns, rows, step, options):
        if not hasattr(self.package, "Table"):
            return False
        self.run.log({name: self.package.Table(columns=columns, data=rows)}, step=step, **options)

    def histogram(self, name, histogram, step, options):
        return False

    def figure(self, name, svg, step, options):
        return False

    def artifact(self, path, directory):
        return False

    def finish(self):
        self.run.finish()


class Wandb(Tracker):
    def histogram(self, name, histogram, step, options):
        counts = load("numpy").array(histogram["counts"])
        edges = load("numpy").array(histogram["edges"])
        self.run.log({name: self.package.Histogram(np_histogram=(counts, edges))}, step=step, **options)

    def figure(self, name, svg, step, options):
        self.run.log({name: self.package.Html(svg, inject=False)}, step=step, **options)

    def artifact(self, path, directory):
        artifact = self.package.Artifact(os.path.basename(os.path.normpath(path)), type="file")
        if os.path.isdir(path):
            artifact.add_dir(path, name=directory or None)
        else:
            artifact.add_file(path, name=os.path.join(directory, os.path.basename(path)))
        self.run.log_artifact(artifact)


class Swanlab(Tracker):
    def begin(self):
        super().begin()
        self.package.config["FRAMEWORK"] = "\N{HUGGING FACE}Accelerate"

    def table(self, name, columns, rows, step, options):
        return False


class CometMl(Tracker):
    def begin(self):
        self.run = self.package.start(project_name=self.project, **self.init_kwargs)

    def config(self, values):
        self.run.log_parameters(values)

    def log(self, values, step, options):
        if step is not None:
            self.run.set_step(step)
        for name, value in values.items():
            if number(value):
                self.run.log_metric(name, value, step=step, **options)
            elif isinstance(value, str):
                self.run.log_other(name, value, **options)
            elif isinstance(value, dict):
                self.run.log_metrics(value, step=step, **options)

    def images(self, name, images, step, options):
        for image in arrays(images)[1]:
            self.run.log_image(image, name=name, step=step, **options)

    def table(self, name, columns, rows, step, options):
        name = name if name.endswith(".csv") else name + ".csv"
        self.run.log_table(name, tabular_data=rows, headers=columns, **options)

    def figure(self, name, svg, step, options):
        self.run.log_asset_data(svg, name=name + ".svg", step=step, **options)

    def artifact(self, path, directory):
        if os.path.isdir(path):
            self.run.log_asset_folder(path, log_file_name=True)
        else:
            self.run.log_asset(path, file_name=os.path.join(directory, os.path.basename(path)))

    def finish(self):
        self.run.end()


class Aim(Tracker):
    def begin(self):
        self.run = self.package.Run(repo=self.logging_dir, **self.init_kwargs)
        self.run.name = self.project

    def config(self, values):
        self.run["hparams"] = values

    def log(self, values, step, options):
        for name, value in values.items():
            self.run.track(value, name=name, step=step, **options)

    def images(self, name, images, step, options):
        image_options = options.pop("aim_image", {})
        track_options = options.pop("track", {})
        caption = options.pop("caption", "")
        batch, separate = arrays(images)
        try:
            image = self.package.Image(batch, caption=caption, **image_options)
        except TypeError:
            # It takes one image at a time, and a sequence of them.
            image = [self.package.Image(each, caption=caption, **image_options) for each in separate]
        self.run.track(image, name=name, step=step, **track_options)

    def table(self, name, columns, rows, step, options):
        return False

    def finish(self):
        self.run.close()


class ClearMl(Tracker):
    def begin(self):
        task = self.package.Task.current_task()
        # Whoever made the task closes it.
        self.owns_task = not task
        if task:
            self.run = task
            return
        self.init_kwargs.setdefault("project_name", os.environ.get("CLEARML_PROJECT", self.project))
        self.init_kwargs.setdefault("task_name", os.environ.get("CLEARML_TASK", self.project))
        self.run = self.package.Task.init(**self.init_kwargs)

    def config(self, values):
        self.run.connect_configuration(values)

    @staticmethod
    def title_and_series(name):
        for prefix in ("eval", "test", "train"):
            if name.startswith(prefix + "_"):
                return name[len(prefix) + 1:], prefix
        return name, "train"

    def log(self, values, step, options):
        logger = self.run.get_logger()
        for name, value in values.items():
            if not number(value):
                continue
            if step is None:
                logger.report_single_value(name=name, value=value, **options)
                continue
            title, series = self.title_and_series(name)
            logger.report_scalar(title=title, series=series, value=value, iteration=step, **options)

    def images(self, name, images, step, options):
        logger = self.run.get_logger()
        title, series = self.title_and_series(name)
        for image in arrays(images)[1]:
            logger.report_image(title=title, series=series, iteration=step, image=image, **options)

    def table(self, name, columns, rows, step, options):
        title, series = self.title_and_series(name)
        self.run.get_logger().report_table(
            title=title, series=series, iteration=step, table_plot=[columns, *rows], **options)

    def artifact(self, path, directory):
        self.run.upload_artifact(os.path.join(directory, os.path.basename(os.path.normpath(path))), path)

    def finish(self):
        if self.owns_task:
            self.run.close()


CLASSES = {"wandb": Wandb, "swanlab": Swanlab, "comet_ml": CometMl, "aim": Aim, "clearml": ClearMl}


def serve(channel):
    tracker = None
    lines = channel.makefile("r", encoding="utf-8", newline="\n")
    for line in lines:
        request = json.loads(line)
        what, arguments = request.pop("do"), request
        try:
            if what == "start":
                tracker = CLASSES.get(arguments["package"], Tracker)(**arguments)
                done = True
            else:
                done = getattr(tracker, what)(**arguments)
            answer = {"ok": done is not False}
        except Missing as error:
            answer = {"missing": str(error)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        channel.sendall(json.dumps(answer).encode() + b"\n")
        if what == "finish":
            return
    # The parent has died.
    if tracker is not None:
        tracker.finish()


if __name__ == "__main__":
    # An interrupt of the terminal is for the parent, which then finishes the run.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Files of the working directory are no packages.
    sys.path[:] = [each for each in sys.path if each != ""]
    os.set_inheritable(int(sys.argv[1]), False)
    serve(socket.socket(fileno=int(sys.argv[1])))
