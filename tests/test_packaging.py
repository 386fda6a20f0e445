"""Packaging: the source distribution is complete, missing compiled modules are reported, CFLAGS do not change bits."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers import launch, pages
from helpers.sets import first

from mpidec.comm.runtime.installed import remedy
from mpidec.comm.runtime.launch import warn_if_not_compiled
from mpidec.diagnostics import doctor, host as _machine

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.serial

ROOT = launch.ROOT
NEEDED = (
    "mpidec/**/*.py",
    "mpidec/**/*.[ch]",
    "mpidec/py.typed",
    "mpidec/**/*.csv",
    "tests/*.py",
    "docs/**/*.md",
    "docs/conf.py",
    "docs/figures/*",
    "examples/**/*.*",
    "tutorials/*.ipynb",
    "tutorials/*.mplstyle",
    "jobscripts/*.*",
    "mpidec/**/*.sh",
    "packaging/*/*",
    "benchmarks/*.py",
    "data/*.*",
    ".ci/*",
    "Makefile",
    "MANIFEST.in",
    "constraints.txt",
    "pyproject.toml",
    "setup.py",
    "setup.cfg",
    "*.md",
    "LICENSE",
    "CITATION.cff",
)
COMPILER = shutil.which((os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0])
# Beginning of a program that runs as if some modules had not been compiled.
HIDDEN = """
import sys
for name in {names!r}:
    sys.modules[name] = None
"""


@pytest.fixture
def checkout(tmp_path):
    """Return a copy of the files of this checkout, without what tools and installations have left there."""
    copy = tmp_path / "checkout"
    shutil.copytree(
        ROOT,
        copy,
        ignore=shutil.ignore_patterns(
            ".git",
            ".venv*",
            "build",
            "dist",
            "*.egg-info",
            "__pycache__",
            ".*_cache",
            ".hypothesis",
            "*.so",
            "*.h5",
            "shared",
        ),
    )
    return copy


def python(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess:
    """Run this Python in a folder, and return its exit status and output."""
    env = {**os.environ, "PYTHONPATH": "", **env}
    return subprocess.run(
        [sys.executable, *args],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=launch.patient(100),
    )


def missing(
    names: tuple[str, ...], code: str, ranks: int, cwd: Path
) -> subprocess.CompletedProcess:
    """Run a program on some ranks as if the compiled modules `names` were missing."""
    return launch.mpirun(ranks, ["-c", HIDDEN.format(names=names) + code], cwd=cwd)


def test_the_source_distribution_holds_what_the_tests_need(checkout, tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    done = python(
        "-c",
        f"import setuptools.build_meta as build; print(build.build_sdist({str(tmp_path)!r}))",
        cwd=checkout,
    )
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / done.stdout.split()[-1]) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        path.relative_to(checkout).as_posix()
        for pattern in NEEDED
        for path in checkout.glob(pattern)
    }
    # what make docs has left is not needed
    needed = {name for name in needed if not name.startswith(pages.BUILT)}
    assert len(needed) > 100 and not needed - held, (
        f"not in the source distribution: {sorted(needed - held)}"
    )
    assert not [name for name in held if name.endswith((".so", ".pyc", ".h5"))]


@pytest.mark.parametrize("source", [None, "https://example.org/mpidec"])
def test_links_of_readme_work_on_a_package_index(source, checkout, tmp_path):
    """They are absolute once the address of the repository is filled in, and plain text before."""
    project = checkout / "pyproject.toml"
    if source:
        text = project.read_text()
        assert "# [project.urls]" in text
        project.write_text(text.replace("# [project.urls]", f'[project.urls]\nSource = "{source}"'))
    build = "import setuptools.build_meta as build; build.prepare_metadata_for_build_wheel"
    done = python("-c", f"{build}({str(tmp_path)!r})", cwd=checkout)
    assert done.returncode == 0, done.stderr
    shown = next(tmp_path.glob("*.dist-info/METADATA")).read_text(encoding="utf-8")
    links = set(re.findall(r"\]\(([^)]+)\)", shown))
    paths = set(re.findall(r"\]\(([^)]+)\)", (checkout / "README.md").read_text(encoding="utf-8")))
    assert len(paths) > 20 and "# mpidec\n" in shown
    expected = {
        f"{source}/{'raw' if path.endswith('.png') else 'blob'}/HEAD/{path}" for path in paths
    }
    assert links == (expected if source else set())


@pytest.mark.slow
def test_the_wheel_holds_all_modules_and_the_commands(checkout, tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    build = f"import setuptools.build_meta as build; print(build.build_wheel({str(tmp_path)!r}))"
    done = python("-c", build, cwd=checkout, CC="false")
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / done.stdout.split()[-1]) as wheel:
        held = set(wheel.namelist())
        points = next(name for name in held if name.endswith("entry_points.txt"))
        commands = wheel.read(points).decode()
    modules = {path.relative_to(checkout).as_posix() for path in checkout.glob("mpidec/**/*.py")}
    assert "mpidec/bluefog/importable/bluefog/__init__.py" in modules and not modules - held
    for name in ("mpidec", "bfrun", "ibfrun"):
        assert f"{name} = mpidec." in commands


def test_the_set_up_reports_what_is_not_compiled(checkout):
    done = python(".ci/compiled.py", cwd=checkout, CC="no-such-compiler")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    for word in (*_machine.COMPILED, "no-such-compiler was not found", "slower", "apt install gcc"):
        assert word in done.stderr
    assert (
        python(".ci/compiled.py", "--buildable", cwd=checkout, CC="no-such-compiler").stdout.strip()
        == ""
    )
    assert python(".ci/compiled.py", "--buildable", cwd=checkout, CC="false").stdout.strip() == ""


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_the_set_up_notices_a_compiler(checkout):
    assert python(".ci/compiled.py", "--buildable", cwd=checkout).stdout.split() == list(
        _machine.COMPILED
    )
    for name in _machine.COMPILED:  # modules older than their sources, and then newer ones
        path = checkout / (name.replace(".", "/") + sysconfig.get_config_var("EXT_SUFFIX"))
        path.touch()
        os.utime(path, (1, 1))
    assert python(".ci/compiled.py", "--buildable", cwd=checkout).stdout.split() == list(
        _machine.COMPILED
    )
    assert python(".ci/compiled.py", cwd=checkout).returncode == 1
    assert not list(checkout.glob("mpidec/*/*.so")), "an old module would be imported"
    for name in _machine.COMPILED:
        (checkout / (name.replace(".", "/") + sysconfig.get_config_var("EXT_SUFFIX"))).touch()
    assert python(".ci/compiled.py", cwd=checkout).returncode == 0


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
@pytest.mark.parametrize(
    "flags",
    first(
        [
            "-O2 -march=native -ffp-contract=fast -funsafe-math-optimizations",
            "-ffast-math",
            "-Ofast",
        ]
    ),
)
def test_compiler_flags_do_not_change_the_bits(checkout, flags):
    """Neither those of the sums, nor, by what GCC adds to fast-math libraries, those of the whole process."""
    pytest.importorskip("setuptools", minversion="77")
    built = python(
        "setup.py",
        "-q",
        "build_ext",
        "--inplace",
        cwd=checkout,
        CFLAGS=flags,
    )
    if "unrecognized" in built.stderr or "unsupported" in built.stderr:
        pytest.skip(f"the compiler does not know {flags}")
    code = (
        "from mpi4py import MPI; from mpidec.diagnostics import host, selftest; assert not host.uncompiled(); "
        "import mpidec; print(mpidec.__file__); selftest.known_sum(MPI.COMM_SELF)"
    )
    done = python("-c", code, cwd=checkout, PYTHONPATH=str(checkout))
    assert done.returncode == 0 and str(checkout) in done.stdout, built.stderr + done.stderr


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_the_memory_of_a_node_is_for_linux(tmp_path, monkeypatch):
    """Elsewhere its module can be compiled, too, says why it is of no use, and nobody is sent to look for a compiler."""
    module = tmp_path / f"_shared{sysconfig.get_config_var('EXT_SUFFIX')}"
    room = ROOT / "mpidec" / "comm" / "runtime"
    for name in ("_shared.c", "_arena.c"):  # the headers of Python may need to know the system
        (tmp_path / name).write_text(
            f'#include <Python.h>\n#undef __linux__\n#include "{room / name}"\n'
        )
    include = f"-I{sysconfig.get_path('include')}"
    sources = [tmp_path / "_shared.c", tmp_path / "_arena.c"]
    subprocess.run(
        [COMPILER, "-w", "-O0", "-shared", "-fPIC", include, *sources, "-o", module],
        check=True,
        timeout=launch.patient(60),
    )
    assert (
        "needs Linux: ranks exchange messages"
        in python("-c", "import _shared", cwd=tmp_path).stderr
    )
    monkeypatch.setitem(sys.modules, _machine.NODE_MEMORY, None)
    monkeypatch.setattr(_machine, "READS_MEMORY", False)
    found = doctor.compiled(doctor.MPI.COMM_SELF)
    assert found.status == "ok" and "needs Linux" in found.text


def test_the_known_sum_finds_other_roundings(monkeypatch):
    from mpidec.diagnostics import selftest as _selftest

    plain = _selftest.weighted_sum
    _selftest.known_sum(None)
    monkeypatch.setattr(
        _selftest, "weighted_sum", lambda *args: np.add(plain(*args), 5e-324, out=args[-1])
    )
    with pytest.raises(ValueError, match="compiled with -ffast-math or fused multiply-add"):
        _selftest.known_sum(None)


def test_the_warning_comes_once():
    warn_if_not_compiled.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_if_not_compiled(True)
        assert not caught
        for _ in range(3):
            warn_if_not_compiled(False)
    warn_if_not_compiled.cache_clear()
    assert [one.category for one in caught] == [RuntimeWarning] and "10 to 100 times slower" in str(
        caught[0].message
    )


def test_a_compiled_copy_beside_the_source_folder_is_named(tmp_path, monkeypatch):
    """In a checkout `python -m mpidec.run` takes the source folder; a compiler would not help."""
    assert "install a C compiler" in remedy()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    for name in _machine.COMPILED:
        path = tmp_path / (name.replace(".", "/") + sysconfig.get_config_var("EXT_SUFFIX"))
        path.parent.mkdir(parents=True)
        assert "install a C compiler" in remedy()
        path.touch()
    assert (
        f"installed in {tmp_path} is compiled" in remedy()
        and "pip install -e ." in remedy()
        and "compiler" not in remedy()
    )
    monkeypatch.setitem(sys.modules, _machine.KERNEL, None)
    assert "pip install -e ." in doctor.compiled(doctor.MPI.COMM_SELF).text


@pytest.mark.launch
@pytest.mark.parametrize(
    "names",
    [_machine.COMPILED, (_machine.KERNEL,), (_machine.NODE_MEMORY,)],
    ids=["all", "sums", "memory"],
)
def test_a_run_says_once_that_it_is_slow(names, tmp_path):
    """A command, which has warnings of rank 0 only; and a program of one's own, without the sums."""
    code = "from mpidec import run; sys.exit(run.main(['--problem=least_squares', '--data=synthetic_least_squares', '--steps=3']))"
    if names == (_machine.KERNEL,):
        code = "import mpidec; mpidec.Network(4).mixer(mpidec.topology.ring(4)).close()"
    done = missing(names, code, 2, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("10 to 100 times slower") == 1 and done.stderr.count("\n") <= 2


@pytest.mark.launch
def test_doctor_names_the_replacements(tmp_path):
    done = missing(
        _machine.COMPILED,
        "from mpidec.diagnostics import doctor; sys.exit(doctor.main([]))",
        3,
        tmp_path,
    )
    said = {
        line.split()[1]: line
        for line in done.stdout.splitlines()
        if line.startswith(("ok", "warn", "FAIL"))
    }
    assert (
        done.returncode == 0
        and said["compiled"].startswith("warn")
        and said["transports"].startswith("warn")
    )
    for word in (
        *_machine.COMPILED,
        "NumPy computes the weighted sums",
        "messages instead of reading shared",
        "install gcc",
    ):
        assert word in said["compiled"]
    assert f"{_machine.NODE_MEMORY} is not compiled" in said["transports"]
    assert "in messages: no two ranks share memory" in done.stdout


def test_doctor_is_content_where_all_is_compiled(monkeypatch):
    monkeypatch.setattr(_machine, "uncompiled", dict)
    assert doctor.compiled(doctor.MPI.COMM_SELF).status == "ok"


def test_make_leaves_alone_what_it_has_not_made(checkout):
    """An environment of the user's by the name of one of make's; what make has made elsewhere is made anew."""
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "mine").touch()
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}

    def run(*command):
        return subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True)

    refused = run(".ci/venv", ".venv", "mpich")
    assert refused.returncode == 1 and "stays as it is" in refused.stderr
    for target in ("run", "test", "lint", "docs", "distclean"):
        told = run("make", "-n", target)
        assert told.returncode == 0, told.stderr
        lines = told.stdout.splitlines()
        assert "stays as it is; make uses .venv-make" in lines[0]
        assert not [line for line in lines[1:] if ".venv/" in line or ".venv " in line], target
    assert [path.name for path in (checkout / ".venv").iterdir()] == ["mine"]
    (checkout / ".venv" / ".path").write_text("/elsewhere")
    assert "stays" not in run("make", "-n", "lint").stdout


def test_recipes_have_the_requirements_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    conda = (ROOT / "packaging/conda/recipe.yaml").read_text()
    spack = (ROOT / "packaging/spack/package.py").read_text()
    compile(spack, "package.py", "exec")
    for requirement in project["dependencies"]:
        name, bound = requirement.partition(";")[0].split(">=")
        assert f'"{name} >={bound}"' in conda, requirement
        assert f'"py-{name}@{bound}:' in spack, requirement
