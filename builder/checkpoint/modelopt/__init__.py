"""What runs in the process that quantises: torch, transformers and NVIDIA's ModelOpt are imported only here."""
