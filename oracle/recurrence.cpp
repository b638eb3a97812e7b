// The recurrences as one writes them on paper: no ring, no window, nothing to get wrong.
#include "oracle/recurrence.hpp"

#include <cmath>
#include <cstddef>

namespace replayssm::oracle {

State zero_state(const Layer& layer) { return State(layer.state_size(), 0.0); }

std::vector<double> recurrence_step(const Layer& layer, const Token& token, State* state) {
  const Derived in = derive(layer, token);
  const int rows = layer.value_dim;
  const int dim = layer.key_dim;
  const int width = layer.gate_width();
  std::vector<double> outputs(layer.heads * rows);
  std::vector<double> decay(dim);

  for (int head = 0; head < layer.heads; ++head) {
    for (int i = 0; i < dim; ++i) {
      decay[i] = std::exp(in.log_decay[head * width + (width == 1 ? 0 : i)]);
    }
    const double* q = in.q.data() + layer.group_of(head) * dim;
    const double* k = in.k.data() + layer.group_of(head) * dim;
    const double weight = in.weight[head];
    double* out = outputs.data() + head * rows;
    for (int row = 0; row < rows; ++row) {
      double* s = state->data() + (head * rows + row) * dim;
      const double v = token.v[head * rows + row];
      for (int i = 0; i < dim; ++i) s[i] *= decay[i];
      double update = weight * v;
      if (layer.delta_rule()) {
        double predicted = 0.0;
        for (int i = 0; i < dim; ++i) predicted += s[i] * k[i];
        update = weight * (v - predicted);
      }
      out[row] = 0.0;
      for (int i = 0; i < dim; ++i) {
        s[i] += update * k[i];
        out[row] += s[i] * q[i];
      }
    }
    finish_output(layer, token, head, out);
  }
  return outputs;
}

RecurrenceRun recurrence_run(const Layer& layer, const State& state,
                             const std::vector<Token>& tokens, const std::vector<int>& parents) {
  RecurrenceRun run;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const int parent = parents.empty() ? static_cast<int>(t) - 1 : parents[t];
    State here = parent < 0 ? state : run.states[parent];
    run.outputs.push_back(recurrence_step(layer, tokens[t], &here));
    run.states.push_back(std::move(here));
  }
  return run;
}

ConvHistory zero_history(const Conv& conv) {
  const auto length = conv.width > 0 ? conv.width - 1 : 0;
  return ConvHistory(length, std::vector<double>(conv.channels, 0.0));
}

std::vector<double> conv_step(const Conv& conv, const std::vector<double>& input,
                              ConvHistory* history) {
  history->push_back(input);  // now `width` inputs, oldest first
  std::vector<double> output(conv.channels);
  for (std::size_t channel = 0; channel < output.size(); ++channel) {
    double sum = conv.bias.empty() ? 0.0 : conv.bias[channel];
    for (int j = 0; j < conv.width; ++j) {
      sum += conv.weight[channel * conv.width + j] * (*history)[j][channel];
    }
    output[channel] = conv.silu ? silu(sum) : sum;
  }
  history->erase(history->begin());
  return output;
}

ConvRun conv_run(const Conv& conv, const ConvHistory& history,
                 const std::vector<std::vector<double>>& inputs, const std::vector<int>& parents) {
  ConvRun run;
  for (std::size_t t = 0; t < inputs.size(); ++t) {
    const int parent = parents.empty() ? static_cast<int>(t) - 1 : parents[t];
    ConvHistory here = parent < 0 ? history : run.histories[parent];
    run.outputs.push_back(conv_step(conv, inputs[t], &here));
    run.histories.push_back(std::move(here));
  }
  return run;
}

}  // namespace replayssm::oracle
