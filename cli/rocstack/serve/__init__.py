"""Many adapters on one server: a gateway with OpenAI's interface in front of one vLLM engine."""
