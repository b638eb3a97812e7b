// BytePairModel: reading and merging.
#include "model/tokenizer_bpe.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "model/json_fields.hpp"
#include "model/tokenizer_limits.hpp"
#include "model/utf8.hpp"

namespace replayssm::model {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

constexpr bool is_printable(std::uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// The code point of each byte.
constexpr std::array<std::uint32_t, 256> make_byte_table() {
  std::array<std::uint32_t, 256> table{};
  std::uint32_t next = 0x100;
  for (std::uint32_t byte = 0; byte < 256; ++byte) table[byte] = is_printable(byte) ? byte : next++;
  return table;
}
constexpr std::array<std::uint32_t, 256> kByteToPoint = make_byte_table();
constexpr std::uint32_t kPointEnd = 0x100 + 68;  // 68 bytes are not printable

// The byte of each code point, -1 where there is none.
constexpr std::array<std::int16_t, kPointEnd> make_point_table() {
  std::array<std::int16_t, kPointEnd> table{};
  for (auto& byte : table) byte = -1;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    table[kByteToPoint[byte]] = static_cast<std::int16_t>(byte);
  }
  return table;
}
constexpr std::array<std::int16_t, kPointEnd> kPointToByte = make_point_table();

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) |
         static_cast<std::uint32_t>(right);
}

// A heap keeps the greatest in front: the lowest rank, then the leftmost position.
bool comes_later(const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

}  // namespace

void append_mapped_byte(std::string& out, std::uint8_t byte) {
  append_utf8(out, kByteToPoint[byte]);
}

std::string unmapped_bytes(std::string_view spelling) {
  std::string bytes;
  std::string_view rest = spelling;
  while (!rest.empty()) {
    const Utf8Step step = utf8_step(rest);
    if (step.kind != Utf8Kind::kValid || step.code_point >= kPointEnd ||
        kPointToByte[step.code_point] < 0) {
      return std::string(spelling);
    }
    bytes.push_back(static_cast<char>(kPointToByte[step.code_point]));
    rest.remove_prefix(step.length);
  }
  return bytes;
}

Result<BytePairModel> BytePairModel::parse(const JsonValue* json, const std::string& source) {
  const std::string where = source + ": model";
  if (json == nullptr) return Status(StatusCode::kInvalidArgument, where + " is missing");
  JsonFields fields(*json, where);
  const std::string type = fields.optional_text({"type"}).value_or("BPE");
  const bool byte_fallback = fields.boolean_or({"byte_fallback"}, false);
  const double dropout = fields.optional_real({"dropout"}, {0, 1}).value_or(0);
  const std::optional<std::string> unknown = fields.optional_text({"unk_token"});
  BytePairModel model;
  model.fuse_unknown_ = fields.boolean_or({"fuse_unk"}, false);
  model.ignore_merges_ = fields.boolean_or({"ignore_merges"}, false);
  if (type != "BPE") {
    fields.fail(StatusCode::kUnsupported,
                "type " + in_quotes(type) + " is not supported; supported is BPE");
  }
  if (dropout > 0)
    fields.fail(StatusCode::kUnsupported, "dropout is not supported; supported is null");
  for (const std::string_view affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!fields.optional_text({affix}).value_or("").empty()) {
      fields.fail(StatusCode::kUnsupported,
                  std::string(affix) + " is not supported; supported is null");
    }
  }
  REPLAYSSM_RETURN_IF_ERROR(fields.status());
  REPLAYSSM_RETURN_IF_ERROR(model.read_vocabulary(*json, where));
  REPLAYSSM_RETURN_IF_ERROR(model.read_merges(*json, where));

  std::size_t missing = 0;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    std::string spelling;
    append_mapped_byte(spelling, static_cast<std::uint8_t>(byte));
    model.byte_ids_[byte] = model.token_id(spelling).value_or(-1);
    if (model.byte_ids_[byte] < 0) ++missing;
  }
  if (missing > 0 && byte_fallback) {
    return Status(StatusCode::kUnsupported,
                  where + ": byte_fallback with a vocabulary that lacks " +
                      std::to_string(missing) +
                      " of the 256 bytes is not supported; supported is false");
  }
  if (unknown) {
    model.unknown_ = model.token_id(*unknown).value_or(-1);
    if (model.unknown_ < 0 && missing > 0) {
      return Status(StatusCode::kInvalidArgument,
                    where + ": unk_token " + in_quotes(*unknown) + " is not in the vocabulary");
    }
  }
  return model;
}

Status BytePairModel::read_vocabulary(const JsonValue& json, const std::string& where) {
  const JsonValue* vocab = json.find("vocab");
  const JsonObject* object = vocab == nullptr ? nullptr : vocab->as_object();
  if (object == nullptr) {
    return Status(
        StatusCode::kInvalidArgument,
        where + ": vocab must be an object of ids by token, given " + JsonValue::describe(vocab));
  }
  ids_.reserve(object->members().size());
  std::vector<std::int32_t> taken;
  taken.reserve(object->members().size());
  for (const JsonObject::Member& member : object->members()) {
    const std::int64_t* id = member.value.as_integer();
    if (id == nullptr || *id < 0 || *id >= kMaxTokenIds) {
      return Status(StatusCode::kInvalidArgument,
                    where + ": vocab: token " + in_quotes(member.key) + ": an id from 0 to " +
                        std::to_string(kMaxTokenIds - 1) + " is required, given " +
                        member.value.describe());
    }
    ids_.emplace(member.key, static_cast<std::int32_t>(*id));
    taken.push_back(static_cast<std::int32_t>(*id));
  }
  std::sort(taken.begin(), taken.end());
  const auto twice = std::adjacent_find(taken.begin(), taken.end());
  if (twice != taken.end()) {
    return Status(StatusCode::kInvalidArgument,
                  where + ": vocab: two tokens have the id " + std::to_string(*twice));
  }
  return {};
}

Status BytePairModel::read_merges(const JsonValue& json, const std::string& where) {
  const JsonValue* merges = json.find("merges");
  const JsonValue::Array* list = merges == nullptr ? nullptr : merges->as_array();
  if (list == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  where + ": merges must be a list, given " + JsonValue::describe(merges));
  }
  merges_.reserve(list->size());
  std::size_t rank = 0;
  for (const JsonValue& merge : *list) {
    std::string_view left;
    std::string_view right;
    const JsonValue::Array* pair = merge.as_array();
    if (const std::string* line = merge.as_string()) {
      if (line->rfind("#version", 0) == 0) continue;
      const std::size_t space = line->find(' ');
      if (space != std::string::npos && line->find(' ', space + 1) == std::string::npos) {
        left = std::string_view(*line).substr(0, space);
        right = std::string_view(*line).substr(space + 1);
      }
    } else if (pair != nullptr && pair->size() == 2 && (*pair)[0].as_string() != nullptr &&
               (*pair)[1].as_string() != nullptr) {
      left = *(*pair)[0].as_string();
      right = *(*pair)[1].as_string();
    }
    if (left.empty() || right.empty()) {
      return Status(StatusCode::kInvalidArgument,
                    where + ": merge " + std::to_string(rank) +
                        ": \"a b\" or [\"a\", \"b\"] is required, given " + merge.describe());
    }
    REPLAYSSM_RETURN_IF_ERROR(add_merge(left, right, rank, where));
    ++rank;
  }
  return {};
}

Status BytePairModel::add_merge(std::string_view left, std::string_view right, std::size_t rank,
                                const std::string& where) {
  const std::string merged = std::string(left) + std::string(right);
  const std::string_view parts[] = {left, right, merged};
  std::array<std::int32_t, 3> ids{};
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::optional<std::int32_t> id = token_id(parts[i]);
    if (!id) {
      return Status(StatusCode::kInvalidArgument, where + ": merge " + std::to_string(rank) + ": " +
                                                      in_quotes(parts[i]) +
                                                      " is not in the vocabulary");
    }
    ids[i] = *id;
  }
  // A pair that is listed twice has its last rank, as in the reference package.
  merges_.insert_or_assign(pair_key(ids[0], ids[1]),
                           Merge{static_cast<std::uint32_t>(rank), ids[2]});
  return {};
}

std::optional<std::int32_t> BytePairModel::token_id(std::string_view spelling) const {
  const auto at = ids_.find(spelling);
  if (at == ids_.end()) return std::nullopt;
  return at->second;
}

Result<BytePairModel> BytePairModel::from_ranks(const std::vector<std::string>& tokens,
                                                const std::string& source) {
  BytePairModel model;
  model.ignore_merges_ = true;
  model.ids_.reserve(tokens.size());
  model.ranked_.reserve(tokens.size());
  for (const std::string& token : tokens) {
    const std::string at = source + ": rank " + std::to_string(model.ranked_.size());
    if (token.empty() || token.size() > kMaxRankTokenBytes) {
      return Status(StatusCode::kInvalidArgument,
                    at + ": a token of 1 to " + std::to_string(kMaxRankTokenBytes) +
                        " bytes is required, given " + std::to_string(token.size()));
    }
    std::string mapped;
    for (const char c : token) append_mapped_byte(mapped, static_cast<std::uint8_t>(c));
    const auto [entry, added] =
        model.ids_.emplace(std::move(mapped), static_cast<std::int32_t>(model.ranked_.size()));
    if (!added) {
      return Status(StatusCode::kInvalidArgument, at + ": the token " + in_quotes(token) +
                                                      " has the rank " +
                                                      std::to_string(entry->second) + " already");
    }
    model.ranked_.push_back(entry->first);
    model.longest_ranked_ = std::max(model.longest_ranked_, entry->first.size());
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    std::string spelling;
    append_mapped_byte(spelling, static_cast<std::uint8_t>(byte));
    const std::optional<std::int32_t> id = model.token_id(spelling);
    if (!id) {
      return Status(StatusCode::kInvalidArgument,
                    source + ": all 256 single bytes must be tokens; byte " + std::to_string(byte) +
                        " is missing");
    }
    model.byte_ids_[byte] = *id;
  }
  return model;
}

std::optional<BytePairModel::Merge> BytePairModel::find_merge(std::int32_t left, std::int32_t right,
                                                              std::string& pair) const {
  if (ranked_.empty()) {
    const auto at = merges_.find(pair_key(left, right));
    return at == merges_.end() ? std::nullopt : std::optional<Merge>(at->second);
  }
  const std::string_view a = ranked_[static_cast<std::size_t>(left)];
  const std::string_view b = ranked_[static_cast<std::size_t>(right)];
  if (a.size() + b.size() > longest_ranked_) return std::nullopt;
  pair.assign(a).append(b);
  const auto at = ids_.find(pair);
  if (at == ids_.end()) return std::nullopt;
  return Merge{static_cast<std::uint32_t>(at->second), at->second};
}

void BytePairModel::start_symbols(std::string_view word, BpeScratch& scratch) const {
  std::vector<BpeScratch::Symbol>& symbols = scratch.symbols;
  symbols.clear();
  const auto add = [&symbols](std::int32_t id) {
    const auto at = static_cast<std::uint32_t>(symbols.size());
    symbols.push_back({id, at == 0 ? kNone : at - 1, at + 1, true});
  };
  bool after_unknown = false;
  for (const char c : word) {
    const std::int32_t id = byte_ids_[static_cast<std::uint8_t>(c)];
    if (id >= 0) {
      add(id);
    } else if (unknown_ >= 0 && !(fuse_unknown_ && after_unknown)) {
      add(unknown_);
    }
    after_unknown = id < 0;
  }
  if (!symbols.empty()) symbols.back().next = kNone;
}

void BytePairModel::push_candidate(BpeScratch& scratch, std::uint32_t position) const {
  const BpeScratch::Symbol& left = scratch.symbols[position];
  if (left.next == kNone) return;
  const std::optional<Merge> merge =
      find_merge(left.id, scratch.symbols[left.next].id, scratch.pair);
  if (!merge) return;
  scratch.heap.push_back({merge->rank, position, merge->merged});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), comes_later);
}

void BytePairModel::encode(std::string_view word, BpeScratch& scratch,
                           std::vector<std::int32_t>& ids) const {
  if (ignore_merges_) {
    scratch.mapped.clear();
    for (const char c : word) append_mapped_byte(scratch.mapped, static_cast<std::uint8_t>(c));
    if (const std::optional<std::int32_t> whole = token_id(scratch.mapped)) {
      ids.push_back(*whole);
      return;
    }
  }
  start_symbols(word, scratch);
  std::vector<BpeScratch::Symbol>& symbols = scratch.symbols;
  scratch.heap.clear();
  for (std::uint32_t i = 0; i + 1 < symbols.size(); ++i) push_candidate(scratch, i);
  while (!scratch.heap.empty()) {
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), comes_later);
    const BpeScratch::Candidate top = scratch.heap.back();
    scratch.heap.pop_back();
    BpeScratch::Symbol& left = symbols[top.position];
    if (!left.alive || left.next == kNone) continue;
    // The pair may have changed since the candidate was found.
    BpeScratch::Symbol& right = symbols[left.next];
    const std::optional<Merge> merge = find_merge(left.id, right.id, scratch.pair);
    if (!merge || merge->merged != top.merged) continue;
    left.id = top.merged;
    left.next = right.next;
    right.alive = false;
    if (left.next != kNone) symbols[left.next].previous = top.position;
    if (left.previous != kNone) push_candidate(scratch, left.previous);
    push_candidate(scratch, top.position);
  }
  for (const BpeScratch::Symbol& symbol : symbols) {
    if (symbol.alive) ids.push_back(symbol.id);
  }
}

}  // namespace replayssm::model
