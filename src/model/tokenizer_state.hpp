// What a Tokenizer is made of. Internal to the tokenizer's files.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "model/pretokenizer.hpp"
#include "model/tokenizer.hpp"
#include "model/tokenizer_added.hpp"
#include "model/tokenizer_bpe.hpp"

namespace replayssm::model {

struct Tokenizer::State {
  BytePairModel model;
  Pretokenizer pretokenizer;
  AddedTokens added;
  bool nfc = false;
  // The post-processor: these ids around each copy of the text. `kTextPlace` stands for the text.
  std::vector<std::int32_t> special_template;

  // By id.
  std::vector<std::string> bytes;
  std::vector<bool> special;
  TextMap<std::int32_t> added_ids;  // by content

  // Words seen before, with their tokens. Only the thread that holds the lock uses it; others do
  // without.
  struct WordCache {
    std::mutex mutex;
    TextMap<std::vector<std::int32_t>> words;
  };
  mutable WordCache cache;

  static constexpr std::int32_t kTextPlace = -1;
};

}  // namespace replayssm::model
