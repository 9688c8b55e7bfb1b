"""One function per family of models: from its configuration to its layers and weights; pure."""
