// What differs between model families: the names of tensors and the order of a decoder's parts.
//
// A new family is a file family_<name>.cpp with a Family, a line in families.cpp, and a reader of
// its config.json beside it (config_families.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.hpp"
#include "model/layers/sublayer.hpp"
#include "model/layers/weight_source.hpp"

namespace replayssm::model {

// A sublayer with the norm in front of it.
struct Stage {
  std::vector<float> norm;  // [hidden]
  std::unique_ptr<Sublayer> layer;
};

// One of `parts` equal parts, along the first axis, of a tensor that a checkpoint stores as a
// whole.
struct StoredSlice {
  std::string stored;  // name
  std::int64_t part = 0;
  std::int64_t parts = 1;
};

struct Family {
  // Names as in ExpectedTensor.
  std::string_view embeddings;
  std::string_view final_norm;
  std::string_view head;       // expected where the embeddings are not tied
  bool centred_norms = false;  // norms are stored as w and mean 1 + w

  // How checkpoints spell an expected name, the usual one first.
  std::vector<std::string> (*spellings)(std::string_view name) = nullptr;
  // The part of the model, for the notice, to which a stored tensor belongs that the layers leave
  // out; empty: to none.
  std::string_view (*left_out)(std::string_view stored) = nullptr;
  // Sublayer number `index` of config.layers. A kind that the family does not have: no layer, and
  // kInternal in the source, because no reader of its config.json gives one.
  Stage (*load)(const ModelConfig& config, std::size_t index, WeightSource& source) = nullptr;
  // Where an expected tensor that no spelling finds may be a part of another; null: nowhere.
  std::optional<StoredSlice> (*slice)(std::string_view name) = nullptr;
};

[[nodiscard]] const Family& family_of(ModelFamily family);

// The failure of `source` for such a kind.
void refuse_layer(std::string_view family, LayerKind kind, WeightSource& source);

// A mixer from its layer's names, which begin with `layer`; null: a kind that the family lacks.
using MixerLoader = std::unique_ptr<Sublayer> (*)(LayerKind kind, const ModelConfig& config,
                                                  const std::string& layer, WeightSource& source);

// Family::load where decoder layer i is two sublayers, 2 i a mixer and 2 i + 1 an MLP, each with a
// norm in front.
[[nodiscard]] Stage load_decoder_half(std::string_view family, const ModelConfig& config,
                                      std::size_t index, WeightSource& source, MixerLoader mixer);

extern const Family kKimiLinearFamily;
extern const Family kNemotronHFamily;
extern const Family kQwen35Family;

}  // namespace replayssm::model
