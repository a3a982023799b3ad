"""What TVM's code generators need from us; registered or inserted through TVM's own hooks."""
