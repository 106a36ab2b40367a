"""A real pretrained language model that fits a laptop, SmolLM2-135M-Instruct, and its cold start on word problems."""
