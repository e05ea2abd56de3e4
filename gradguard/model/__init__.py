"""What a model is made of and what it is fed with: names, order of layers, inputs, outputs, buffers."""
