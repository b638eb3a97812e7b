// replayssm info: what a checkpoint holds and what a sequence costs.
#include <fmt/format.h>

#include <string>

#include "commands.hpp"
#include "exit_code.hpp"
#include "json_output.hpp"
#include "model_lookup.hpp"
#include "replayssm/model.hpp"
#include "text.hpp"

namespace replayssm::app {
namespace {

// M, * and - as nemotron_h's own pattern strings write them.
char pattern_character(LayerKind kind) {
  switch (kind) {
    case LayerKind::kMamba2: return 'M';
    case LayerKind::kAttention: return '*';
    case LayerKind::kMlp: return '-';
    case LayerKind::kGdn: return 'G';
    case LayerKind::kKda: return 'K';
    case LayerKind::kLatentAttention: return 'L';
  }
  return '?';
}

// "21 mamba2, 4 attention, 17 mlp".
std::string layer_counts(const ModelInfo& info) {
  std::string text;
  for (const LayerKind kind :
       {LayerKind::kMamba2, LayerKind::kGdn, LayerKind::kKda, LayerKind::kAttention,
        LayerKind::kLatentAttention, LayerKind::kMlp}) {
    if (info.count(kind) == 0) continue;
    text +=
        fmt::format("{}{} {}", text.empty() ? "" : ", ", info.count(kind), layer_kind_name(kind));
  }
  return text;
}

std::string line(std::string_view name, const std::string& value) {
  return fmt::format("{:<18} {}\n", name, value);
}

std::string info_text(const ModelInfo& info) {
  std::string pattern;
  for (const LayerKind kind : info.layers) pattern += pattern_character(kind);
  std::string text = line("model", one_line(info.path));
  text += line("architecture", one_line(info.architecture));
  text += line("parameters", format_count(info.parameters));
  text +=
      line("weights", fmt::format("{} {}{}; {} in memory, computed in {}",
                                  format_bytes(static_cast<double>(info.weight_bytes)),
                                  dtype_name(info.weight_dtype),
                                  info.has_weights ? "" : " expected, but the files are missing",
                                  format_bytes(static_cast<double>(info.resident_weight_bytes)),
                                  compute_type_name(info.compute)));
  text +=
      line("layers", fmt::format("{}: {}; {}", info.layers.size(), layer_counts(info), pattern));
  text += line("hidden, vocabulary", fmt::format("{}, {}{}", info.hidden, info.vocab,
                                                 info.tied_embeddings ? " (tied embeddings)" : ""));
  if (info.max_positions > 0) {
    text += line("context", fmt::format("{} tokens", format_count(info.max_positions)));
  }
  // Layers of one rule have one shape.
  const LayerShape* before = nullptr;
  for (const LayerShape& layer : info.recurrent) {
    if (before == nullptr || !(*before == layer)) {
      text += line(
          fmt::format("{} layer", rule_name(layer.rule)),
          fmt::format("{} x {} value dim x {} {} dim, {}; convolution of {}, width {}",
                      counted(layer.heads, "head"), layer.value_dim, layer.key_dim,
                      layer.rule == Rule::kMamba2 ? "state" : "key",
                      counted(layer.groups, layer.rule == Rule::kMamba2 ? "group" : "key head"),
                      counted(layer.conv_channels, "channel"), layer.conv_width));
    }
    before = &layer;
  }
  if (info.count(LayerKind::kAttention) > 0) {
    text += line(
        "attention layer",
        fmt::format("{} of {}, {}{}", counted(info.attention_heads, "head"),
                    info.attention_head_dim, counted(info.kv_heads, "key-value head"),
                    info.rotary_dims > 0 ? fmt::format(", {} rotary dims", info.rotary_dims) : ""));
  }
  if (info.count(LayerKind::kLatentAttention) > 0) {
    text += line("latent attention",
                 fmt::format("{} of {}, {} a token", counted(info.attention_heads, "head"),
                             info.attention_head_dim, counted(info.latent_width, "number")));
  }
  if (info.count(LayerKind::kMlp) > 0)
    text += line("mlp layer", fmt::format("{} wide", info.mlp_width));
  text += line("a sequence",
               fmt::format("{} of state, {} of convolution inputs, {} of keys and values a token",
                           format_bytes(static_cast<double>(info.state_bytes())),
                           format_bytes(static_cast<double>(info.conv_bytes())),
                           format_bytes(static_cast<double>(info.kv_bytes_per_token()))));
  return text;
}

}  // namespace

int run_info(Console& console, const InfoCommand& command) {
  const Result<std::string> folder = find_model(command.model);
  if (!folder.ok()) return fail_to_load(console, folder.status());
  const Result<ModelInfo> info = inspect_model(*folder);
  if (!info.ok()) return fail_to_load(console, info.status());
  console.out(command.json ? to_json(*info) : info_text(*info));
  return finish(console, kExitOk);
}

}  // namespace replayssm::app
