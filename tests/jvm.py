"""How tests start Spark: JVMs that compile little, with an archive of the classes that a job of ours uses, and Python
workers that find modules compiled.

    python -m tests.jvm       make the archive, unless there is one that fits

With STRANDLINE_TEST_JVM=users, as `make soak` has it, JVMs are as users have them: they compile, all libraries are there,
and no archive is used. Only the warm-up that Strandline gives to a user's JVM is left out.

A JVM that reads Spark's classes from jars spends most of a small test on loading and verifying them. The archive is what
Java calls a dynamic class data archive; a JVM that it does not fit ignores it, and tests run without it as well.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from xml.etree import ElementTree

_ROOT = Path(__file__).parent.parent
_DIRECTORY = _ROOT / "build" / "jvm"
_DRIVERS = "SPARK_SUBMIT_OPTS"
"""What Spark's launcher gives to each driver, before the options of its session."""
_TEMPORARY = "-Djava.io.tmpdir="

_UNUSED = (
    "HikariCP", "JLargeArrays", "JTransforms", "arpack", "bonecp", "blas", "breeze", "curator-", "datanucleus-", "derby",
    "hive-", "javax.jdo", "jdo-api", "jline", "jpam", "jta", "kubernetes-", "lapack",
    "libfb303", "libthrift", "netty-tcnative-boringssl", "opencsv", "spark-connect", "spark-graphx", "spark-hive",
    "spark-kubernetes", "spark-mllib", "spark-pipelines", "spark-repl", "spark-yarn", "spire", "super-csv", "vertx-",
    "volcano-", "zjsonpatch", "zookeeper",
)  # fmt: skip
"""Libraries of Spark for Hive, Kubernetes, YARN, machine learning and others that tests have no use for, by prefix."""

_AS_USERS_HAVE_IT = os.environ.get("STRANDLINE_TEST_JVM") == "users"
_SPARK = importlib.util.find_spec("pyspark")
_VERSION = hashlib.sha256(Path(__file__).read_bytes() + str(_SPARK and _SPARK.origin).encode()).hexdigest()[:8]
_SHARED = _DIRECTORY / f"{'users' if _AS_USERS_HAVE_IT else 'light'}-{_VERSION}"
"""A home for each version of this file and of Spark: another checkout with the same build/ may be testing with another one."""
# A JVM that lives for minutes spends more on compiling, soon or well, and collecting in parallel than that gives back.
# Hadoop starts a process to set a file's permissions, dozens of times a second: Java's own way takes two programs each.
_LIGHT = (
    "-XX:TieredStopAtLevel=1 -XX:CompileThresholdScaling=4 -XX:+UseSerialGC -Djdk.lang.Process.launchMechanism=VFORK"
)
GENERATED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
"""As users have it: the fixture `generated_code`."""
# For a few rows, Spark's interpreter is done before Java code for a plan is generated and compiled.
_INTERPRETED = (
    "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN -Dspark.sql.ui.explainMode=simple "
    "-Dspark.sql.lightweightPlanChangeValidation=false"
)
_DEFAULTS = ("core-default.xml", "mapred-default.xml", "yarn-default.xml")
_USED = ("fs.AbstractFileSystem.", "fs.default", "fs.file.", "fs.permissions.", "fs.trash.", "hadoop.common.",
         "hadoop.security.auth", "hadoop.tmp.", "io.", "mapreduce.fileoutputcommitter.")  # fmt: skip
"""Of Hadoop's settings, those that local files ask for. Each task that writes a file is sent all there are."""


def use() -> None:
    """Set the options of all drivers that this process and its children start, and of their Python workers."""
    if _TEMPORARY not in os.environ.get(_DRIVERS, ""):
        # A JVM that is killed leaves what it has unpacked, and its blocks. Children of this process may be killed, too.
        directory = tempfile.mkdtemp(prefix="jvm-")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        os.environ[_DRIVERS] = f"{_options()} {_TEMPORARY}{directory}".strip()
    # Drivers, workers and keepers would each compile all of our modules.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["SPARK_HOME"] = str(spark_home(_SHARED))


def executors() -> dict[str, str]:
    """Return the settings of a session whose executors are processes of their own."""
    if _AS_USERS_HAVE_IT:
        return {}
    options = [option for option in os.environ.get(_DRIVERS, "").split() if not option.startswith("-Dspark.")]
    return {"spark.executor.extraJavaOptions": f"-Xss16m {' '.join(options)}"}


def spark_home(directory: Path) -> Path:
    """Return a home for Spark, made if need be, in which the workers of a cluster may write.

    It lacks the zip file from which Spark's Python workers import pyspark: there is no place in it for compiled modules,
    which costs each of them half a second. They find the package that is installed. And it lacks libraries that no test
    of ours needs: to find that a class does not exist, which compiling Spark's expressions asks often, Java looks into
    every one. Of Hadoop's it lacks the defaults that no test needs. As users have it, it lacks nothing.
    """
    import pyspark

    installed = Path(pyspark.__file__).parent
    made_of = directory / "made-of"
    if made_of.exists() and made_of.samefile(installed):
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(directory, ignore_errors=True)
    made = Path(tempfile.mkdtemp(dir=directory.parent, prefix="home-"))
    for entry in installed.iterdir():
        if _AS_USERS_HAVE_IT or entry.name not in ("python", "jars"):
            (made / entry.name).symlink_to(entry)
    if not _AS_USERS_HAVE_IT:
        if directory == _SHARED:
            _link_used(installed / "jars", made / "jars")
        else:
            # An archive fits libraries that are the same files in the same order, and each directory has its own.
            (made / "jars").symlink_to(spark_home(_SHARED) / "jars")
    (made / "made-of").symlink_to(installed)
    try:
        made.rename(directory)
    except OSError:
        # Another process has just made it.
        shutil.rmtree(made)
    return directory


def _link_used(jars: Path, target: Path) -> None:
    """Link the libraries that tests use."""
    target.mkdir()
    for jar in jars.glob("*.jar"):
        if jar.name.startswith("hadoop-client-api"):
            _without_defaults(jar, target / jar.name)
        elif not jar.name.startswith(_UNUSED):
            (target / jar.name).symlink_to(jar)


def _without_defaults(jar: Path, target: Path) -> None:
    """Copy Hadoop's library without the defaults of the thousand settings that tests have no use for."""
    with zipfile.ZipFile(jar) as given, zipfile.ZipFile(target, "w") as made:
        for entry in given.infolist():
            data = given.read(entry)
            if entry.filename in _DEFAULTS:
                settings = ElementTree.fromstring(data)
                for setting in settings.findall("property"):
                    if not (setting.findtext("name") or "").startswith(_USED):
                        settings.remove(setting)
                data = ElementTree.tostring(settings)
            made.writestr(entry.filename, data)


def _options() -> str:
    if _AS_USERS_HAVE_IT:
        return ""
    archive = _archive()
    # Else Java says on standard output that an archive does not fit.
    given = f"{_LIGHT} {_INTERPRETED}"
    return f"{given} -Xlog:disable -XX:SharedArchiveFile={archive}" if archive.exists() else given


def _archive() -> Path:
    """Return where the archive is, or would be, for this Java, this Spark, and the job below."""
    import pyspark

    java = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else shutil.which("java")
    found = Path(java or "java").resolve()
    files = [found.parent.parent / "lib" / "server" / "libjvm.so", Path(__file__), Path(__file__).with_name("warm.py")]
    files += sorted(Path(pyspark.__file__).parent.joinpath("jars").iterdir())
    known = "\n".join(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files if path.exists())
    return _DIRECTORY / f"{hashlib.sha256(known.encode()).hexdigest()[:16]}.jsa"


def _make(archive: Path) -> str:
    """Run a job, have its JVM write the archive when it ends, and return what was said if there is none."""
    with tempfile.TemporaryDirectory(prefix="sl-jvm-") as directory:
        made = archive.with_suffix(f".{os.getpid()}")
        path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        options = f"{_LIGHT} {_INTERPRETED} -Xlog:disable -XX:ArchiveClassesAtExit={made}"
        environment = {**os.environ, "PYTHONPATH": path, _DRIVERS: options}
        done = subprocess.run(
            [sys.executable, "-m", "tests.warm", directory],
            env=environment, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=300, check=False,
        )  # fmt: skip
    if done.returncode or not made.exists():
        made.unlink(missing_ok=True)
        return done.stdout or "nothing was written"
    made.replace(archive)
    return ""


def main() -> None:
    """Make the archive, unless there is one that fits; tests run without it, too."""
    archive = _archive()
    if archive.exists():
        return
    use()
    print("archiving the classes of Spark, which tests then load faster", file=sys.stderr)
    archive.parent.mkdir(parents=True, exist_ok=True)
    for other in archive.parent.glob("*.jsa"):
        other.unlink()
    said = _make(archive)
    if said:
        print(f"no archive could be made; tests run without it: {said[-2000:]}", file=sys.stderr)


if __name__ == "__main__":
    main()
