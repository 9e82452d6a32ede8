"""What a run would take, told before it: by its own code, on tensors that have shapes but no memory."""
