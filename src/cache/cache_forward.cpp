// One forward: the order of its calls, and the shapes of their tensors.
#include <algorithm>

#include "cache/cache_impl.hpp"
#include "core/checks.hpp"
#include "core/text.hpp"

namespace replayssm {

Status Cache::Impl::begin(const Rows& rows) {
  if (rows.count < 0 || rows.count > config_.max_rows) {
    return invalid_argument("begin: rows must be 0 to max_rows = ", config_.max_rows, ", given ",
                            rows.count);
  }
  if (rows.count > 0 && rows.slots == nullptr)
    return invalid_argument("begin: slots: required, given none");
  if (stage_ != Stage::kClosed) {
    REPLAYSSM_RETURN_IF_ERROR(backend_->check_begin(table_, rows));
    REPLAYSSM_RETURN_IF_ERROR(abort(rows.stream));
  }
  REPLAYSSM_RETURN_IF_ERROR(backend_->begin(table_, rows));
  stage_ = Stage::kBegun;
  touched_ = false;
  std::fill(progress_.begin(), progress_.end(), LayerProgress{});
  return {};
}

Status Cache::Impl::fold(void* stream) {
  if (stage_ != Stage::kBegun) {
    return failed_precondition(stage_ == Stage::kClosed
                                   ? "fold: no forward is open; call begin first"
                                   : "fold: this forward has been folded already");
  }
  REPLAYSSM_RETURN_IF_ERROR(backend_->fold(table_, stream));
  stage_ = Stage::kFolded;
  return {};
}

Status Cache::Impl::check_layer_call(std::int32_t layer, const char* call) const {
  if (stage_ == Stage::kClosed)
    return failed_precondition(call, ": no forward is open; call begin and fold first");
  if (stage_ == Stage::kBegun) return failed_precondition(call, ": call fold first");
  if (layer < 0 || layer >= table_.layer_count) {
    return error(StatusCode::kOutOfRange, call, ": layer must be 0 to ", table_.layer_count - 1,
                 ", given ", layer);
  }
  return {};
}

Status Cache::Impl::conv(const ConvInputs& inputs) {
  REPLAYSSM_RETURN_IF_ERROR(check_layer_call(inputs.layer, "conv"));
  const LayerShape& shape = layers_[static_cast<std::size_t>(inputs.layer)].shape;
  LayerProgress& progress = progress_[static_cast<std::size_t>(inputs.layer)];
  if (shape.conv_channels == 0) {
    return failed_precondition("conv: layer ", inputs.layer, " was created without conv_channels");
  }
  if (progress.conv) {
    return failed_precondition("conv: layer ", inputs.layer, " has been convolved in this forward");
  }
  ViewRule rule;
  rule.tokens = table_.forward.tokens;
  rule.d1 = shape.conv_channels;
  rule.dtype = config_.activations;
  rule.name = "conv: in";
  REPLAYSSM_RETURN_IF_ERROR(check_view(inputs.in, rule));
  rule.name = "conv: out";
  rule.output = true;
  REPLAYSSM_RETURN_IF_ERROR(check_view(inputs.out, rule));
  if (inputs.in.present() && inputs.in.data == inputs.out.data) {
    return invalid_argument("conv: out must not overlap in");
  }
  REPLAYSSM_RETURN_IF_ERROR(backend_->conv(table_, inputs));
  progress.conv = true;
  touched_ = true;
  return {};
}

namespace {

Status check_inputs(const LayerInputs& inputs, const LayerShape& shape, DType activations,
                    std::int64_t tokens) {
  ViewRule rule;
  rule.tokens = tokens;
  rule.dtype = activations;
  const auto check = [&](const TensorView& view, const char* name, std::int64_t d1,
                         std::int64_t d2) {
    rule.name = name;
    rule.d1 = d1;
    rule.d2 = d2;
    return check_view(view, rule);
  };
  REPLAYSSM_RETURN_IF_ERROR(check(inputs.value, "value", shape.heads, shape.value_dim));
  REPLAYSSM_RETURN_IF_ERROR(check(inputs.key, "key", shape.groups, shape.key_dim));
  REPLAYSSM_RETURN_IF_ERROR(check(inputs.query, "query", shape.groups, shape.key_dim));
  rule.or_f32 = true;
  if (shape.rule == Rule::kKda) {
    REPLAYSSM_RETURN_IF_ERROR(check(inputs.gate, "gate", shape.heads, shape.key_dim));
  } else {
    REPLAYSSM_RETURN_IF_ERROR(check(inputs.gate, "gate", shape.heads, 0));
  }
  if (shape.rule != Rule::kMamba2) {
    REPLAYSSM_RETURN_IF_ERROR(check(inputs.beta, "beta", shape.heads, 0));
    if (inputs.z.present())
      return invalid_argument("z: only mamba2 takes z, given one for ", rule_name(shape.rule));
  }
  rule.output = true;
  REPLAYSSM_RETURN_IF_ERROR(check(inputs.out, "out", shape.heads, shape.value_dim));
  // Heads run side by side in no fixed order, so one reads inputs after another has stored outputs;
  // mamba2 also copies its records from the inputs after its own outputs.
  for (const TensorView* input :
       {&inputs.value, &inputs.key, &inputs.query, &inputs.gate, &inputs.beta, &inputs.z}) {
    if (inputs.out.present() && input->data == inputs.out.data) {
      return invalid_argument("out: must not overlap an input, given the same address");
    }
  }
  rule.output = false;
  rule.or_f32 = false;
  rule.optional = true;
  return check(inputs.z, "z", shape.heads, shape.value_dim);
}

}  // namespace

Status Cache::Impl::run_layer(const LayerInputs& inputs, LayerCall call) {
  const char* name = call == LayerCall::kStep ? "step" : "prefill";
  REPLAYSSM_RETURN_IF_ERROR(check_layer_call(inputs.layer, name));
  const LayerShape& shape = layers_[static_cast<std::size_t>(inputs.layer)].shape;
  LayerProgress& progress = progress_[static_cast<std::size_t>(inputs.layer)];
  bool& done = call == LayerCall::kStep ? progress.step : progress.prefill;
  if (done) return failed_precondition(name, ": layer ", inputs.layer, " has run in this forward");
  if (shape.conv_channels > 0 && !progress.conv) {
    return failed_precondition(name, ": call conv for layer ", inputs.layer, " first");
  }
  REPLAYSSM_RETURN_IF_ERROR(
      check_inputs(inputs, shape, config_.activations, table_.forward.tokens));
  REPLAYSSM_RETURN_IF_ERROR(call == LayerCall::kStep ? backend_->step(table_, inputs)
                                                     : backend_->prefill(table_, inputs));
  done = true;
  touched_ = true;
  return {};
}

Status Cache::Impl::check_all_layers_ran() const {
  for (std::size_t i = 0; i < progress_.size(); ++i) {
    if (table_.forward.needs_step && !progress_[i].step) {
      return failed_precondition("commit: layer ", i, " has not been stepped in this forward");
    }
    if (table_.forward.needs_prefill && !progress_[i].prefill) {
      return failed_precondition("commit: layer ", i, " has not been prefilled in this forward");
    }
  }
  return {};
}

// Far beyond any use, and so little that the place of a row's nodes cannot overflow.
constexpr std::int64_t kMaxNodeStride = std::int64_t{1} << 28;

Status Cache::Impl::commit(const Accepted& accepted) {
  if (stage_ == Stage::kClosed)
    return failed_precondition("commit: no forward is open (was it committed already?)");
  if (stage_ == Stage::kBegun) return failed_precondition("commit: call fold and step first");
  if (accepted.count != table_.forward.count) {
    return invalid_argument("commit: required ", table_.forward.count, " rows, as in begin, given ",
                            accepted.count);
  }
  if (accepted.node_stride < 0 || accepted.node_stride > kMaxNodeStride) {
    return invalid_argument("commit: node_stride must be 0 to ", kMaxNodeStride, ", given ",
                            accepted.node_stride);
  }
  REPLAYSSM_RETURN_IF_ERROR(check_all_layers_ran());
  const Status status = backend_->commit(table_, accepted);
  // A device may report what went wrong after it has ended the forward; the host ends it with it.
  const bool ended = accepted.count > 0 && table_.forward.count == 0;
  if (status.ok() || ended) close();
  return status;
}

Status Cache::Impl::abort(void* stream) {
  if (stage_ == Stage::kClosed) return {};
  REPLAYSSM_RETURN_IF_ERROR(backend_->abandon(table_, touched_, stream));
  close();
  return {};
}

void Cache::Impl::close() {
  stage_ = Stage::kClosed;
  touched_ = false;
  for (SlotUse& use : use_) {
    if (use == SlotUse::kLeaving) use = SlotUse::kFree;
  }
}

}  // namespace replayssm
