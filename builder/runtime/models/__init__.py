"""The Python code of the Triton models; each module has the `TritonPythonModel` of the model of its name.

Only these modules import `triton_python_backend_utils`, which exists inside Triton's Python stub alone.
"""
