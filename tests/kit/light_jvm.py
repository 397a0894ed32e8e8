"""JVMs that live for seconds: no second compiler, one collector thread, no file of counters."""

from __future__ import annotations

LIGHT_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
