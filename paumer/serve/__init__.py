"""RUNNING IT FOR OTHERS: the governor, the HTTP service and its page."""
