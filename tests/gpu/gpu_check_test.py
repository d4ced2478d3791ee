#!/usr/bin/env python3
"""Tests tools/gpu_check: with programs that stand for ours, and, if a build is given, by packing it and a dry run.

usage: gpu_check_test.py SOURCE_DIRECTORY [BUILD LIBTORCH]
"""
import importlib.machinery
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
SOURCE = Path(sys.argv[1]).resolve()
BUILD = [Path(argument) for argument in sys.argv[2:4]]
TOOL = SOURCE / "tools" / "gpu_check"
loader = importlib.machinery.SourceFileLoader("gpu_check", str(TOOL))
gpu_check = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
loader.exec_module(gpu_check)

GPT = """#!/bin/sh
echo "step 1 loss 5.0"
echo "step 2 loss 4.5"
echo "1 process, 2000 tokens/s"
echo "$@" >> arguments.txt
"""
TESTS = """#!/bin/sh
echo "$@ on $ACCELERATE_TEST_DEVICE" >> arguments.txt
echo "[ RUN      ] A.Passes"
echo "[       OK ] A.Passes (3 ms)"
echo "[ RUN      ] A.Fails"
echo "[  FAILED  ] A.Fails (5 ms)"
echo "[  FAILED  ] A.Fails"
exit 1
"""


# Stands for the launcher: every rank passes one case, and skips another.
LAUNCHER = """#!/bin/sh
echo "$LD_PRELOAD $ACCELERATE_TEST_RANKS $@" >> arguments.txt
case "$*" in
  *hang_rank*forward*) echo "nobody is named"; exit 3 ;;
  *hang_rank*) echo "accelerate-cpp: rank 1 ended"; exit 137 ;;
  *_tests*)
    for rank in $(seq 0 $(($3 - 1))); do
      echo "[$rank] [       OK ] A.Passes (3 ms)"
      echo "[$rank] [  SKIPPED ] A.Skips (0 ms)"
    done ;;
esac
"""


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Pieces(unittest.TestCase):
    def test_each_piece_of_work_keeps_its_seconds_whatever_came_before(self):
        clock = Clock()
        time = gpu_check.Time(100, [10, 20, 30], clock)
        # 40 s that nothing else needs, but not more than three times its own.
        self.assertEqual(time.take(), 30)
        clock.now += 30
        self.assertEqual(time.take(), 40)
        clock.now += 40
        self.assertEqual(time.take(), 30)

    def test_seconds_are_scaled_if_there_are_too_few(self):
        clock = Clock()
        time = gpu_check.Time(30, [10, 20, 30], clock)
        self.assertEqual(time.take(), 5)
        clock.now += 1
        self.assertEqual(time.take(), 14)
        clock.now += 100
        self.assertEqual(time.take(), 0)

    def test_output_of_googletest_names_what_failed_and_what_was_running(self):
        output = "\n".join([
            "[ RUN      ] A.One", "[       OK ] A.One (1 ms)", "[ RUN      ] A.Two/x", "[  SKIPPED ] A.Two/x (0 ms)",
            "[ RUN      ] A.Three/1", "[  FAILED  ] A.Three/1, where GetParam() = 7 (12 ms)", "[ RUN      ] A.Four"])
        self.assertEqual(gpu_check.cases_of(output), (["A.One"], ["A.Three/1"], ["A.Two/x"], "A.Four"))
        self.assertEqual(gpu_check.cases_of(""), ([], [], [], ""))

    def test_a_case_of_several_ranks_passes_on_all_or_fails(self):
        output = "\n".join([
            "[0] [ RUN      ] A.One", "[1] [ RUN      ] A.One", "[1] [       OK ] A.One (1 ms)", "[0] [       OK ] A.One (2 ms)",
            "[0] [       OK ] A.Two (1 ms)", "[1] [  FAILED  ] A.Two (1 ms)", "[0] [  SKIPPED ] A.Three (0 ms)", "[1] [  SKIPPED ] A.Three (0 ms)",
            "[0] [       OK ] A.Four (1 ms)"])
        self.assertEqual(gpu_check.cases_of_ranks(output, 2), ({"A.One"}, {"A.Two"}, {"A.Three"}))

    def test_lines_of_json_are_found_among_others(self):
        self.assertEqual(list(gpu_check.json_lines('a\n{"x": 1}\n{broken\n {"y": 2}\n{"z": 3}')), [{"x": 1}, {"z": 3}])

    def test_table_is_aligned(self):
        rows = [{"part": "gpt", "name": "one", "status": "ok", "seconds": 1.25, "figures": {"ms": 1234.5}, "detail": ""},
                {"part": "tests", "name": "t", "status": "failed", "seconds": 0, "figures": {}, "detail": "A.B"}]
        self.assertEqual(gpu_check.table(rows).splitlines(), ["part   what  result  s    figures",
                                                              "gpt    one   ok      1.2  ms 1,234.5",
                                                              "tests  t     failed  0.0  A.B"])

    def test_system_libraries_are_not_packed(self):
        for name in ("libc.so.6", "libstdc++.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libgcc_s.so.1", "libm.so.6"):
            self.assertRegex(name, gpu_check.SYSTEM)
        for name in ("libcurl.so.4", "libmagic.so.1", "libaccelerate.so.0.1", "libyaml-cpp.so.0.7"):
            self.assertNotRegex(name, gpu_check.SYSTEM)

    def test_parts_that_do_not_exist_are_refused(self):
        self.assertEqual(gpu_check.parts_of("gpt,tests"), ["gpt", "tests"])
        with self.assertRaisesRegex(Exception, "unknown: speed; parts: tests, ranks, gpt, fused, where, steps, bench"):
            gpu_check.parts_of("speed")


class Unpacked(unittest.TestCase):
    """An unpacked archive whose programs are scripts."""

    def setUp(self):
        self.directory = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.directory)
        self.archive = self.directory / "gpu_check"
        (self.archive / "bin").mkdir(parents=True)
        self.torch = self.directory / "site" / "torch"
        (self.torch / "lib").mkdir(parents=True)
        (self.torch / "lib" / "libtorch_cpu.so").touch()
        (self.directory / "site" / "nvidia" / "cu13" / "lib").mkdir(parents=True)
        (self.torch / "version.py").write_text("__version__ = '2.11.0+cpu'\n")
        shutil.copy(TOOL, self.archive / "gpu_check")
        self.program("gpt", GPT)
        (self.archive / "gpt_gpu.py").write_text("import sys\nprint('{\"skipped\": \"no package\"}')\nsys.exit(77)\n")
        self.manifest(libtorch="2.11.0", tests=[], steps=[])

    def program(self, name, text):
        path = self.archive / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def manifest(self, **values):
        (self.archive / "manifest.json").write_text(json.dumps(values))

    def run_tool(self, *arguments):
        command = [sys.executable, str(self.archive / "gpu_check"), "run", "--torch", str(self.torch), *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=self.directory, check=False)

    def report(self, *arguments, code=0):
        ended = self.run_tool("--device", "cpu", *arguments)
        self.assertEqual(ended.returncode, code, ended.stdout + ended.stderr)
        return json.loads((self.directory / "gpu_check_results" / "gpu_check.json").read_text()), ended.stdout

    def arguments(self):
        return (self.directory / "gpu_check_results" / "arguments.txt").read_text().splitlines()

    def test_ranks_are_launched_as_processes_and_named_when_they_die(self):
        self.program("accelerate-cpp", LAUNCHER)
        report, _ = self.report("--parts", "ranks", code=1)
        rows = {row["name"]: row for row in report["rows"]}
        self.assertEqual(len(rows), 4 + 3 + 12)
        self.assertEqual(rows["parity of 2 processes"]["figures"], {"passed": 1, "failed": 0, "skipped": 1})
        self.assertEqual(rows["pipeline of 4 processes"]["status"], "ok")
        self.assertEqual(rows["checkpoint, loaded on CPUs"]["figures"], {"ranks": 3})
        self.assertEqual(rows["rank stopped, data"]["status"], "ok")
        self.assertEqual((rows["rank killed, forward"]["status"], rows["rank killed, forward"]["detail"]),
                         ("failed", "failed: exit code 3; nobody is named"))
        self.assertEqual(report["counts"], {"failed": 2, "ok": 17})
        suites = [line for line in self.arguments() if "_tests" in line]
        self.assertRegex(suites[0], r"^ processes launch --num_processes 2 --num_cpu_threads_per_process 1 --cpu --timeout_seconds 60 ")
        self.assertIn("/bin/parity_tests --gtest_filter=All/TechniqueParity*_no_window3_ranks2:", suites[0])

    def test_models_are_compared_and_missing_packages_skipped(self):
        report, output = self.report("--parts", "gpt")
        self.assertEqual(report["counts"], {"ok": 4, "skipped": 8})
        rows = report["rows"]
        self.assertEqual(rows[0]["name"], "1 x 32, bf16, this library")
        # 2 samples of 16 tokens, of which 2000 take a second.
        self.assertEqual(rows[0]["figures"], {"ms": 16.0, "tokens_per_s": 2000.0, "loss": 4.5})
        self.assertEqual((rows[1]["status"], rows[1]["detail"]), ("skipped", "no package"))
        self.assertIn("ms 16.0, tokens_per_s 2,000.0, loss 4.5", output)
        flags = self.arguments()
        self.assertTrue(flags[0].endswith("--precision bf16"), flags[0])
        self.assertTrue(flags[1].endswith("--precision fp8 --fp8_recipe tensorwise"), flags[1])

    def test_ratios_say_how_much_faster_this_library_is(self):
        (self.archive / "gpt_gpu.py").write_text("print('{\"ms\": 24.0, \"loss\": 1}')\n")
        report, _ = self.report("--parts", "gpt")
        self.assertEqual(report["rows"][0]["figures"]["over_eager"], 1.5)
        self.assertEqual(report["rows"][0]["figures"]["over_inductor"], 1.5)
        self.assertNotIn("over_eager", report["rows"][1]["figures"])

    def test_fused_steps_are_compared_with_the_others(self):
        report, _ = self.report("--parts", "fused")
        self.assertEqual([row["figures"]["time_over_fused"] for row in report["rows"]], [1, 1, 1, 1])
        self.assertTrue(self.arguments()[3].endswith("--no_fused_linear --no_fused_optimizers"))

    def test_tables_of_the_device_become_figures(self):
        self.program("gpt", GPT + """
cat <<END
rank  steps  ms per step  data
----  -----  -----------  -----
0         3        9.000   1.0%
rank  device  steps  ms per step  compute  launch-bound  (hidden copies)
----  ------  -----  -----------  -------  ------------  ---------------
0          0      3       12.345    80.5%         19.5%             0.0%
END
""")
        report, _ = self.report("--parts", "where")
        self.assertEqual(report["rows"][0]["figures"], {"ms per step": 12.345, "compute": 80.5, "launch-bound": 19.5, "(hidden copies)": 0})
        self.assertTrue(self.arguments()[1].endswith("--steps 8 --learning_rate 0.0003 --precision bf16 --profile 3"))
        self.program("gpt", GPT)
        report, _ = self.report("--parts", "where")
        self.assertEqual((report["rows"][0]["figures"], report["rows"][0]["detail"]), ({}, "no device was recorded"))

    def test_tests_run_with_their_filters_and_environment(self):
        self.program("some_tests", TESTS)
        self.manifest(libtorch="2.11.0", steps=[], tests=[{
            "name": "some_tests", "program": "some_tests", "arguments": ["@bin@/other"],
            "environment": ["ACCELERATE_TEST_DEVICE=cuda:0"], "filters": ["A.*", "B.C"]}])
        report, _ = self.report("--parts", "tests", code=1)
        row = report["rows"][0]
        self.assertEqual((row["status"], row["detail"]), ("failed: exit code 1", "A.Fails"))
        self.assertEqual(row["figures"], {"passed": 1, "failed": 1, "skipped": 0})
        self.assertEqual(self.arguments(), [f"{self.archive.resolve()}/bin/other --gtest_filter=A.*:B.C on cuda:0"])

    def test_a_filter_that_selects_nothing_is_a_failure(self):
        self.program("some_tests", "#!/bin/sh\nexit 0\n")
        self.manifest(libtorch="2.11.0", steps=[], tests=[
            {"name": "some_tests", "program": "some_tests", "arguments": [], "environment": [], "filters": ["A.*"]}])
        report, _ = self.report("--parts", "tests", code=1)
        self.assertEqual(report["rows"][0]["detail"], "no test was run")

    def test_programs_that_hang_are_killed_with_what_they_started(self):
        # Waits for a child that would run for an hour.
        self.program("some_tests", '#!/bin/sh\necho "[ RUN      ] A.Hangs"\nsleep 3600 &\necho $! > child.txt\nwait\n')
        self.manifest(libtorch="2.11.0", steps=[], tests=[
            {"name": "some_tests", "program": "some_tests", "arguments": [], "environment": [], "filters": ["A.*"]}])
        report, _ = self.report("--parts", "tests,fused", "--seconds", "3", code=1)
        row = report["rows"][0]
        self.assertRegex(row["status"], r"^timed out: killed after \d s$")
        self.assertEqual(row["detail"], "while A.Hangs ran")
        child = int((self.directory / "gpu_check_results" / "child.txt").read_text())
        state = Path(f"/proc/{child}/stat")
        self.assertTrue(not state.exists() or state.read_text().split()[2] == "Z")
        # The part after it is still there.
        self.assertEqual(report["rows"][1]["part"], "fused")

    def test_crashes_are_named_and_do_not_stop_the_others(self):
        self.program("gpt", "#!/bin/sh\necho 'step 1 loss 5.0'\nkill -SEGV $$\n")
        self.program("bench_gpu", '#!/bin/sh\necho \'{"case":"gpu","metric":"clip","value":2,"unit":"us","baseline":4,"ratio":0.5}\'\n')
        report, _ = self.report("--parts", "fused,bench", code=1)
        self.assertEqual(report["rows"][0]["status"], "crashed: SIGSEGV")
        self.assertEqual(report["rows"][0]["detail"], "after 1 of 12 steps; step 1 loss 5.0")
        self.assertEqual(report["rows"][4]["name"], "clip")
        self.assertEqual(report["rows"][4]["figures"], {"value": 2, "baseline": 4, "ratio": 0.5})
        self.assertEqual((report["rows"][5]["name"], report["rows"][5]["figures"]), ("bench_gpu", {"figures": 1}))

    def test_steps_run_if_they_were_packed(self):
        report, _ = self.report("--parts", "steps")
        self.assertEqual(report["rows"][0]["status"], "skipped")
        self.program("bench_captured_step", '#!/bin/sh\necho \'{"metric":"captured_over_plain","value":0.2}\'\n')
        self.manifest(libtorch="2.11.0", tests=[], steps=["bench_captured_step"])
        report, _ = self.report("--parts", "steps")
        self.assertEqual(report["rows"][0]["figures"], {"value": 0.2})
        self.program("bench_captured_step", "#!/bin/sh\necho first\necho 'a step takes 80 us, captured 20'\n")
        report, _ = self.report("--parts", "steps")
        self.assertEqual(report["rows"][0]["detail"], "a step takes 80 us, captured 20")

    def test_programs_find_pytorch_before_the_directories_they_were_linked_with(self):
        self.program("gpt", "#!/bin/sh\necho $LD_LIBRARY_PATH,$LD_PRELOAD >> arguments.txt\n" + GPT.replace("#!/bin/sh", ""))
        self.report("--parts", "fused")
        libraries, preloaded = self.arguments()[0].split(",")
        self.assertEqual(preloaded, "")
        self.assertEqual(libraries.split(":")[:3], [f"{self.archive.resolve()}/lib", f"{self.torch.resolve()}/lib",
                                                    f"{self.torch.resolve().parent}/nvidia/cu13/lib"])

    def test_other_versions_of_pytorch_are_refused(self):
        (self.torch / "version.py").write_text("__version__ = '2.9.1'\n")
        ended = self.run_tool("--device", "cpu")
        self.assertEqual(ended.returncode, 2)
        self.assertIn("the programs need LibTorch 2.11.0, but", ended.stderr)
        self.assertIn("is 2.9.1", ended.stderr)

    def test_a_directory_without_pytorch_is_refused(self):
        (self.torch / "lib" / "libtorch_cpu.so").unlink()
        ended = self.run_tool("--device", "cpu")
        self.assertEqual(ended.returncode, 2)
        self.assertIn("has no lib/libtorch_cpu.so", ended.stderr)

    def test_a_machine_without_a_device_is_told_so(self):
        try:
            gpu_check.device_of_driver()
            self.skipTest("this machine has a CUDA device")
        except gpu_check.Fault:
            pass
        ended = self.run_tool()
        self.assertEqual(ended.returncode, 2)
        self.assertIn("nothing was run. --device cpu is a dry run without one", ended.stderr)

    def test_run_outside_an_archive_says_how_to_make_one(self):
        (self.archive / "manifest.json").unlink()
        ended = self.run_tool("--device", "cpu")
        self.assertIn("make one with: gpu_check pack BUILD OUT.tar.xz", ended.stderr)


class Packed(unittest.TestCase):
    """A build whose programs are the system's."""

    def setUp(self):
        self.directory = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.directory)
        self.build = self.directory / "build"
        (self.build / "bin").mkdir(parents=True)
        (self.build / "CMakeCache.txt").write_text(
            "ACCELERATE_LIBTORCH_VERSION:INTERNAL=2.11.0\nACCELERATE_LIBTORCH_DIRECTORY:INTERNAL=/nowhere/torch\n")
        for name in ("a_tests", "b_tests", "gpt"):
            shutil.copy(shutil.which("true"), self.build / "bin" / name)
        a_tests, b_tests = self.build / "bin" / "a_tests", self.build / "bin" / "b_tests"
        (self.build / "CTestTestfile.cmake").write_text("\n".join([
            f'add_test(one "{a_tests}" "--gtest_filter=A.One" "--gtest_also_run_disabled_tests")',
            f'add_test(two "{a_tests}" "--gtest_filter=A.Two")',
            f'add_test(ranks "{b_tests}" "{a_tests}" "3")',
            f'add_test(other "{b_tests}" "--gtest_filter=B.*")',
            'set_tests_properties(one two PROPERTIES LABELS gpu)',
            'set_tests_properties(ranks PROPERTIES LABELS gpu ENVIRONMENT "X=1;Y=2")',
            'set_tests_properties(other PROPERTIES LABELS unit)']))

    def pack(self, *arguments):
        command = [sys.executable, str(TOOL), "pack", str(self.build), str(self.directory / "out.tar.xz"), "--preset", "0", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_tests_with_the_label_are_packed_by_program(self):
        ended = self.pack("--parts", "tests,steps")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertRegex(ended.stdout, r"MiB  bin/a_tests\n")
        self.assertRegex(ended.stdout, r"0\.\d\d MiB  \S+out\.tar\.xz, of 40\n")
        shutil.unpack_archive(self.directory / "out.tar.xz", self.directory)
        manifest = json.loads((self.directory / "gpu_check" / "manifest.json").read_text())
        self.assertEqual(manifest, {"libtorch": "2.11.0", "steps": [], "tests": [
            {"name": "a_tests", "program": "a_tests", "arguments": [], "environment": [], "filters": ["A.One", "A.Two"]},
            {"name": "ranks", "program": "b_tests", "arguments": ["@bin@/a_tests", "3"], "environment": ["X=1", "Y=2"], "filters": []}]})
        self.assertTrue(os.access(self.directory / "gpu_check" / "gpu_check", os.X_OK))

    def test_an_archive_that_is_too_large_is_refused(self):
        ended = self.pack("--parts", "tests", "--limit_mib", "0.001")
        self.assertEqual(ended.returncode, 2)
        self.assertRegex(ended.stderr, r"the archive must have at most 0\.001 MiB, but has 0\.\d\d; leave out parts")
        self.assertFalse((self.directory / "out.tar.xz").exists())

    def test_missing_programs_are_named_with_their_targets(self):
        (self.build / "bin" / "gpt").unlink()
        ended = self.pack("--parts", "gpt,bench")
        self.assertEqual(ended.returncode, 2)
        self.assertIn(f"not built: gpt, bench_gpu; cmake --build {self.build.resolve()} --target gpt bench_gpu", ended.stderr)

    def test_a_directory_that_is_no_build_is_refused(self):
        (self.build / "CMakeCache.txt").unlink()
        self.assertIn("is not a built tree", self.pack().stderr)


@unittest.skipUnless(BUILD, "no build was given")
class Built(unittest.TestCase):
    def test_the_example_of_this_build_runs_from_its_archive(self):
        build, torch = BUILD
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            archive = directory / "out.tar.xz"
            command = [sys.executable, str(TOOL), "pack", str(build), str(archive), "--preset", "0", "--parts", "fused"]
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
            shutil.unpack_archive(archive, directory)
            command = [sys.executable, "gpu_check/gpu_check", "run", "--parts", "fused", "--device", "cpu", "--torch", str(torch)]
            ended = subprocess.run(command, capture_output=True, text=True, cwd=directory, check=False)
            self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
            report = json.loads((directory / "gpu_check_results" / "gpu_check.json").read_text())
            self.assertEqual(report["counts"], {"ok": 4})
            for row in report["rows"]:
                self.assertGreater(row["figures"]["tokens_per_s"], 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
