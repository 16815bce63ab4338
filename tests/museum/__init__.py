"""The museum of bugs: one test for each bug that other replication systems had, numbered."""
