// Block lists the other way round, as a torch extension. Counting keeps query blocks in ascending order.
// Not torch/extension.h: all of torch's headers take a compiler more than twice as long.
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/utils/pybind.h>

#include <tuple>

// kv_num int32 [H, Q], kv_indices int32 [H, Q, max] -> q_num int32 [H, n_k], q_indices int32 [H, n_k, Q], zeros behind.
static std::tuple<at::Tensor, at::Tensor> transpose_lists(const at::Tensor& kv_num, const at::Tensor& kv_indices,
                                                          int64_t n_k) {
  TORCH_CHECK(kv_num.scalar_type() == at::kInt && kv_indices.scalar_type() == at::kInt, "lists must be int32");
  TORCH_CHECK(kv_num.dim() == 2 && kv_indices.dim() == 3, "lists must be [H, Q] and [H, Q, max]");
  const int64_t heads = kv_indices.size(0), n_q = kv_indices.size(1), longest = kv_indices.size(2);
  const at::Tensor num = kv_num.contiguous(), indices = kv_indices.contiguous();
  at::Tensor q_num = at::zeros({heads, n_k}, num.options()), q_indices = at::zeros({heads, n_k, n_q}, num.options());
  const int32_t *from_num = num.const_data_ptr<int32_t>(), *from = indices.const_data_ptr<int32_t>();
  int32_t *to_num = q_num.mutable_data_ptr<int32_t>(), *to = q_indices.mutable_data_ptr<int32_t>();
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t q = 0; q < n_q; ++q) {
      TORCH_CHECK(from_num[h * n_q + q] <= longest, "the list of query block ", q, " is longer than its row");
      for (int32_t i = 0; i < from_num[h * n_q + q]; ++i) {
        const int32_t k = from[(h * n_q + q) * longest + i];
        TORCH_CHECK(0 <= k && k < n_k, "list entry ", i, " of query block ", q, " is out of range");
        to[(h * n_k + k) * n_q + to_num[h * n_k + k]++] = int32_t(q);
      }
    }
  return {q_num, q_indices};
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("transpose_lists", &transpose_lists); }
