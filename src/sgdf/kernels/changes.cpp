// Collects, in one call, all that a fused step on CUDA depends on.
//
// `facts` receives, for every parameter: its address, size and dtype, its gradient's dtype, and for
// every entry of its state the address, size and dtype of a tensor, or the address of another
// object. `grads` receives the addresses of the gradients, which may change from step to step.
// Returns the number of facts, or -1 if a gradient is missing, sparse, or not laid out like its
// parameter, or if any tensor has no memory. The caller holds the GIL.
#include <Python.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstdint>

namespace {

int64_t address_of(const at::Tensor& tensor) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.unsafeGetTensorImpl()->data()));
}

int64_t kind_of(const at::Tensor& tensor) {
  const c10::Device device = tensor.device();
  const int64_t place = static_cast<int64_t>(device.type()) * 65536 + device.index();
  return static_cast<int64_t>(tensor.scalar_type()) * 16777216 + place;
}

bool has_memory(const at::Tensor& tensor) { return tensor.numel() == 0 || address_of(tensor); }

struct Writer {
  int64_t* out;
  int64_t capacity;
  int64_t count = 0;
  void add(int64_t fact) {
    if (count < capacity) out[count] = fact;
    ++count;
  }
};

bool collect(PyObject* params, PyObject* states, Writer& facts, int64_t* grads) {
  const Py_ssize_t n = PyList_GET_SIZE(params);
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* param = PyList_GET_ITEM(params, i);
    PyObject* state = PyList_GET_ITEM(states, i);
    if (!THPVariable_Check(param) || !PyDict_Check(state)) return false;
    const at::Tensor& p = THPVariable_Unpack(param);
    const at::Tensor& g = p.grad();
    if (!g.defined() || g.layout() != at::kStrided || p.layout() != at::kStrided) return false;
    if (g.sizes() != p.sizes() || g.strides() != p.strides()) return false;
    if (!has_memory(p) || !has_memory(g)) return false;
    facts.add(address_of(p));
    facts.add(p.numel());
    facts.add(kind_of(p));
    facts.add(kind_of(g));
    grads[i] = address_of(g);
    PyObject *key, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(state, &position, &key, &value)) {
      if (THPVariable_Check(value)) {
        const at::Tensor& moment = THPVariable_Unpack(value);
        if (!has_memory(moment)) return false;
        facts.add(address_of(moment));
        facts.add(moment.numel());
        facts.add(kind_of(moment));
      } else {
        facts.add(static_cast<int64_t>(reinterpret_cast<uintptr_t>(value)));
      }
    }
    facts.add(-1 - PyDict_GET_SIZE(state));
  }
  return true;
}

}  // namespace

extern "C" int64_t sgdf_collect_addresses(PyObject* params, PyObject* states, int64_t* facts,
                                          int64_t capacity, int64_t* grads) {
  try {
    Writer writer{facts, capacity};
    return collect(params, states, writer, grads) ? writer.count : -1;
  } catch (...) {  // tensors without memory, and anything else torch refuses
    PyErr_Clear();
    return -1;
  }
}
