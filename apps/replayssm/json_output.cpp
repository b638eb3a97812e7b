// The results of the subcommands as JSON. The one file of the program that includes nlohmann/json,
// which takes long to compile.
#include "json_output.hpp"

#include <nlohmann/json.hpp>

namespace replayssm::app {
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const Json& json) {
  // Replace: a file or a model may hold bytes that are not UTF-8, and a JSON text may not.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
}

Json implementation_json(const ImplementationInfo& implementation) {
  Json rules = Json::array();
  for (const Rule rule : implementation.rules) rules.push_back(rule_name(rule));
  Json formats = Json::array();
  for (const StateFormat format : implementation.formats) {
    formats.push_back(state_format_name(format));
  }
  Json activations = Json::array();
  for (const DType dtype : implementation.activations) activations.push_back(dtype_name(dtype));
  return {{"name", implementation.name},
          {"device", implementation.device},
          {"decode", decode_mode_name(implementation.decode)},
          {"rules", rules},
          {"formats", formats},
          {"activations", activations},
          {"available", implementation.available},
          {"unavailable_because", implementation.unavailable_because}};
}

}  // namespace

std::string to_json(const GenerateReport& report) {
  Json list = Json::array();
  for (const SequenceOutput& output : report.outputs) {
    list.push_back({{"text", output.text},
                    {"tokens", output.tokens},
                    {"decode", decode_mode_name(report.decode)},
                    {"draft", draft_kind_name(report.draft)},
                    {"tokens_per_s", report.stats.decode_tokens_per_second()},
                    {"state_bytes_per_token", report.stats.state_bytes_per_token},
                    {"accepted_per_step", report.stats.accepted_per_step()},
                    {"finish", finish_reason_name(output.finish)}});
  }
  return text_of(list.size() == 1 ? list.front() : list);
}

std::string to_json(const Comparison& comparison) {
  Json runs = Json::array();
  for (const ComparedRun& run : comparison.runs) {
    runs.push_back({{"decode", decode_mode_name(run.decode)},
                    {"draft", draft_kind_name(run.draft)},
                    {"implementation", run.implementation},
                    {"text", run.text},
                    {"tokens", run.tokens},
                    {"tokens_per_s", run.stats.decode_tokens_per_second()},
                    {"state_bytes_per_token", run.stats.state_bytes_per_token},
                    {"accepted_per_step", run.stats.accepted_per_step()},
                    {"finish", finish_reason_name(run.finish)},
                    {"first_difference", run.first_difference},
                    {"gap_at_difference", run.gap_at_difference},
                    {"agrees", run.agrees}});
  }
  return text_of({{"runs", runs},
                  {"bound", comparison.bound},
                  {"near_ties", comparison.near_ties},
                  {"first_near_tie", comparison.first_near_tie},
                  {"agree", comparison.agree}});
}

std::string to_json(const ModelInfo& info) {
  Json layers = Json::array();
  for (const LayerKind kind : info.layers) layers.push_back(layer_kind_name(kind));
  Json json = {{"path", info.path},
               {"architecture", info.architecture},
               {"layers", layers},
               {"hidden", info.hidden},
               {"vocab", info.vocab},
               {"max_positions", info.max_positions},
               {"tied_embeddings", info.tied_embeddings},
               {"parameters", info.parameters},
               {"has_weights", info.has_weights},
               {"weight_bytes", info.weight_bytes},
               {"weight_dtype", dtype_name(info.weight_dtype)},
               {"compute", compute_type_name(info.compute)},
               {"resident_weight_bytes", info.resident_weight_bytes}};
  if (!info.recurrent.empty()) {  // no family has recurrent layers of two shapes
    const LayerShape& layer = info.recurrent.front();
    json["recurrent"] = {{"rule", rule_name(layer.rule)}, {"heads", layer.heads},
                         {"groups", layer.groups},        {"value_dim", layer.value_dim},
                         {"key_dim", layer.key_dim},      {"conv_channels", layer.conv_channels},
                         {"conv_width", layer.conv_width}};
  }
  if (info.count(LayerKind::kAttention) > 0) {
    json["attention"] = {{"heads", info.attention_heads},
                         {"kv_heads", info.kv_heads},
                         {"head_dim", info.attention_head_dim},
                         {"rotary_dims", info.rotary_dims}};
  }
  if (info.count(LayerKind::kLatentAttention) > 0) {
    json["latent_attention"] = {{"heads", info.attention_heads},
                                {"head_dim", info.attention_head_dim},
                                {"width", info.latent_width}};
  }
  if (info.count(LayerKind::kMlp) > 0) json["mlp_width"] = info.mlp_width;
  json["bytes_per_sequence"] = {{"state", info.state_bytes()},
                                {"conv", info.conv_bytes()},
                                {"kv_per_token", info.kv_bytes_per_token()}};
  return text_of(json);
}

std::string to_json(const Plan& plan) {
  Json rows = Json::array();
  for (const PlanRow& row : plan.rows) {
    rows.push_back({{"decode", decode_mode_name(row.decode)},
                    {"step_tokens", row.step_tokens},
                    {"window", row.window},
                    {"kv_bytes", row.kv_bytes},
                    {"state_bytes", row.state_bytes},
                    {"ring_bytes", row.ring_bytes},
                    {"conv_bytes", row.conv_bytes},
                    {"control_bytes", row.control_bytes},
                    {"sequence_bytes", row.sequence_bytes},
                    {"sequences", row.sequences}});
  }
  return text_of({{"weight_bytes", plan.weight_bytes},
                  {"memory_bytes", plan.memory_bytes},
                  {"context", plan.context},
                  {"rows", rows}});
}

std::string to_json(const DoctorReport& report) {
  Json implementations = Json::array();
  for (const ImplementationInfo& implementation : report.implementations) {
    implementations.push_back(implementation_json(implementation));
  }
  return text_of(
      {{"version", report.version},
       {"cpu",
        {{"model", report.cpu_model},
         {"level", report.cpu_level},
         {"features", report.cpu_features},
         {"cores", report.cores}}},
       {"memory_bytes", report.memory_bytes},
       {"model_cache", {{"path", report.model_cache}, {"exists", report.model_cache_exists}}},
       {"implementations", implementations},
       {"missing", report.missing}});
}

}  // namespace replayssm::app
