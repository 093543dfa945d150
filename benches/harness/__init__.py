"""The parts that all benchmarks share: records, rounds, judging, tables, servers and the pages."""
