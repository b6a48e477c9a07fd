"""What runs inside the container: Triton's launch, the models' Python code, the OpenAI API, health and metrics.

Shipped into images, so it imports nothing of ours but `builder.errors`, `builder.catalog` and `builder.reference`.
"""
