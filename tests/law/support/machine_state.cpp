// Machine's tensors of state: store_state and load_state.
#include <utility>

#include "tests/law/support/machine.hpp"

namespace replayssm::laws {
namespace {

struct StateTensors {
  std::vector<HostileTensor> states;
  std::vector<std::optional<HostileTensor>> convs;
  std::vector<LayerState> views;
};

StateTensors state_tensors(const Case& made, TestDevice& device, HostileTensor::Use use,
                           DType dtype, bool key_major, bool conv, Random* layout) {
  StateTensors all;
  all.states.reserve(made.layers.size());
  all.convs.reserve(made.layers.size());
  for (const CaseLayer& layer : made.layers) {
    const LayerShape& shape = layer.shape;
    all.states.emplace_back(device, use, dtype, shape.heads,
                            key_major ? shape.key_dim : shape.value_dim,
                            key_major ? shape.value_dim : shape.key_dim, layout);
    all.convs.emplace_back();
    LayerState view;
    view.state = all.states.back().view();
    view.key_major = key_major;
    if (shape.conv_channels > 0 && conv) {
      all.convs.back().emplace(device, use, made.config.activations, shape.conv_width - 1,
                               shape.conv_channels, 0, layout);
      view.conv = all.convs.back()->view();
    }
    all.views.push_back(view);
  }
  return all;
}

}  // namespace

Status Machine::store(std::int64_t slot, DType dtype, bool key_major, Stored* stored) {
  Random* layout = options_.hostile_layout ? &random_ : nullptr;
  StateTensors t =
      state_tensors(case_, device_, HostileTensor::Use::kOutput, dtype, key_major, true, layout);
  for (std::size_t i = 0; i < t.views.size(); ++i) {
    t.states[i].upload();
    if (t.convs[i]) t.convs[i]->upload();
  }
  REPLAYSSM_RETURN_IF_ERROR(cache_->store_state(slot, t.views));
  *stored = {};
  for (std::size_t i = 0; i < t.views.size(); ++i) {
    const LayerShape& shape = case_.layers[i].shape;
    t.states[i].download();
    const std::string problem = t.states[i].check_untouched(std::vector<bool>(shape.heads, true));
    if (!problem.empty()) return {StatusCode::kInternal, "store_state: " + problem};
    std::vector<double> state;
    std::vector<unsigned char> bytes;
    for (int head = 0; head < shape.heads; ++head) {
      const std::vector<double> one = t.states[i].token(head);
      const std::vector<unsigned char> raw = t.states[i].token_bytes(head);
      const std::size_t size = raw.size() / one.size();
      for (int v = 0; v < shape.value_dim; ++v) {
        for (int k = 0; k < shape.key_dim; ++k) {
          const std::size_t at = key_major ? k * shape.value_dim + v : v * shape.key_dim + k;
          state.push_back(one[at]);
          bytes.insert(bytes.end(), raw.begin() + static_cast<std::ptrdiff_t>(at * size),
                       raw.begin() + static_cast<std::ptrdiff_t>((at + 1) * size));
        }
      }
    }
    stored->state.push_back(std::move(state));
    stored->state_bytes.push_back(std::move(bytes));
    stored->conv.emplace_back();
    if (!t.convs[i]) continue;
    t.convs[i]->download();
    for (int j = 0; j + 1 < shape.conv_width; ++j) {
      stored->conv.back().push_back(t.convs[i]->token(j));
    }
  }
  return {};
}

Status Machine::load(std::int64_t slot, std::int64_t position, DType dtype, bool key_major,
                     bool conv, const Stored& values) {
  Random* layout = options_.hostile_layout ? &random_ : nullptr;
  StateTensors t =
      state_tensors(case_, device_, HostileTensor::Use::kInput, dtype, key_major, conv, layout);
  for (std::size_t i = 0; i < t.views.size(); ++i) {
    const LayerShape& shape = case_.layers[i].shape;
    for (int head = 0; head < shape.heads; ++head) {
      const double* from = values.state[i].data() + head * shape.value_dim * shape.key_dim;
      const int rows = key_major ? shape.key_dim : shape.value_dim;
      const int columns = key_major ? shape.value_dim : shape.key_dim;
      std::vector<double> line(columns);
      for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < columns; ++c) {
          line[c] = key_major ? from[c * shape.key_dim + r] : from[r * shape.key_dim + c];
        }
        t.states[i].set(head, r, line.data());
      }
    }
    t.states[i].upload();
    if (!t.convs[i]) continue;
    for (int j = 0; j + 1 < shape.conv_width; ++j) t.convs[i]->set(j, 0, values.conv[i][j].data());
    t.convs[i]->upload();
  }
  return cache_->load_state(slot, position, t.views);
}

}  // namespace replayssm::laws
