"""Java for Spark: the user's, the machine's, or the one that a wheel brings."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from killing import fake_java

from lance_memwal.spark.java import provide_java


def test_a_java_home_of_the_user_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/somewhere")
    assert provide_java() is None
    assert os.environ["JAVA_HOME"] == "/somewhere"


def test_a_new_enough_java_of_the_machine_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path / "bin", "21.0.1")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert provide_java() is None
    assert "JAVA_HOME" not in os.environ


@pytest.mark.parametrize("machine_has", ["", "11.0.2"])
def test_without_a_usable_java_one_is_provided_that_takes_sparks_arguments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine_has: str
) -> None:
    if machine_has:
        fake_java(tmp_path / "bin", machine_has)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/nowhere")
    home = provide_java()
    assert home is not None
    assert os.environ["JAVA_HOME"] == home
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    command = [f"{home}/bin/java", "--add-modules=jdk.incubator.vector", "-Dname=two words", "-version"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert shown.returncode == 0, shown.stderr
    assert "version" in shown.stderr
