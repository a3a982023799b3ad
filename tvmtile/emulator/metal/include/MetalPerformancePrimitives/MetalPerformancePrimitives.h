// Part of Metal Performance Primitives: what multiplies cooperative tensors.
#include "emulator/tensor_ops.h"
