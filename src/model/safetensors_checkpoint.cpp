// A folder of safetensors files as one set of tensors.
#include <algorithm>
#include <system_error>
#include <utility>

#include "model/json_value.hpp"
#include "model/safetensors.hpp"
#include "model/utf8.hpp"

namespace replayssm::model {
namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr std::size_t kMaxIndexBytes = 100'000'000;
constexpr std::string_view kShardEnd = ".safetensors";

// Plain names only: an index decides which files are opened.
bool is_plain_shard_name(std::string_view name) {
  if (name.size() <= kShardEnd.size() || name.substr(name.size() - kShardEnd.size()) != kShardEnd) {
    return false;
  }
  const auto refused = [](char c) {
    return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  };
  return name.front() != '.' && std::none_of(name.begin(), name.end(), refused);
}

bool name_before(const TensorEntry& entry, std::string_view name) { return entry.name < name; }

const TensorEntry* find_sorted(std::span<const TensorEntry> tensors, std::string_view name) {
  const auto at = std::lower_bound(tensors.begin(), tensors.end(), name, name_before);
  return at == tensors.end() || at->name != name ? nullptr : &*at;
}

}  // namespace

Result<std::vector<ShardEntry>> parse_shard_index(std::string_view json, std::string_view source) {
  Result<JsonValue> parsed = parse_json(json, source);
  if (!parsed.ok()) return parsed.status();
  const auto fail = [source](const std::string& message) {
    return Status(StatusCode::kDataLoss, std::string(source) + ": " + message);
  };
  const JsonValue* map = parsed->find("weight_map");
  const JsonObject* object = map == nullptr ? nullptr : map->as_object();
  if (object == nullptr)
    return fail("weight_map must be an object of shard names by tensor, given " +
                JsonValue::describe(map));
  std::vector<ShardEntry> entries;
  entries.reserve(object->members().size());
  for (const JsonObject::Member& member : object->members()) {
    const std::string* file = member.value.as_string();
    if (file == nullptr || !is_plain_shard_name(*file)) {
      return fail("tensor " + in_quotes(member.key) +
                  ": a plain file name that ends in .safetensors is required, given " +
                  member.value.describe());
    }
    ShardEntry entry;
    entry.tensor = member.key;
    entry.file = *file;
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(),
            [](const ShardEntry& a, const ShardEntry& b) { return a.tensor < b.tensor; });
  return entries;
}

Result<Checkpoint> Checkpoint::open_file(const std::filesystem::path& file) {
  Result<MappedFile> mapped = MappedFile::open(file);
  if (!mapped.ok()) return mapped.status();
  Result<std::vector<TensorEntry>> entries =
      parse_safetensors(mapped->bytes(), path_in_quotes(file.native()));
  if (!entries.ok()) return entries.status();
  Checkpoint checkpoint;
  checkpoint.files_.push_back(std::move(mapped).value());
  checkpoint.tensors_ = std::move(entries).value();
  return checkpoint;
}

Result<Checkpoint> Checkpoint::open(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (std::filesystem::exists(folder / kSingleFile, ignored)) {
    return open_file(folder / kSingleFile);
  }
  const std::filesystem::path index_path = folder / kIndexFile;
  if (!std::filesystem::exists(index_path, ignored)) {
    return Status(StatusCode::kNotFound, path_in_quotes(folder.native()) + ": neither " +
                                             kSingleFile + " nor " + kIndexFile + " is there");
  }
  const Result<std::string> text = read_text_file(index_path, kMaxIndexBytes);
  if (!text.ok()) return text.status();
  Result<std::vector<ShardEntry>> index =
      parse_shard_index(*text, path_in_quotes(index_path.native()));
  if (!index.ok()) return index.status();

  std::vector<std::string> names;
  for (const ShardEntry& entry : *index) names.push_back(entry.file);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  Checkpoint checkpoint;
  std::vector<std::vector<TensorEntry>> shards;
  for (const std::string& name : names) {
    Result<Checkpoint> shard = open_file(folder / name);
    if (!shard.ok()) return shard.status();
    checkpoint.files_.push_back(std::move(shard->files_.front()));
    shards.push_back(std::move(shard->tensors_));
  }
  for (const ShardEntry& entry : *index) {
    const auto shard = std::lower_bound(names.begin(), names.end(), entry.file) - names.begin();
    const TensorEntry* tensor = find_sorted(shards[static_cast<std::size_t>(shard)], entry.tensor);
    if (tensor == nullptr) {
      return Status(StatusCode::kNotFound, path_in_quotes(index_path.native()) + ": tensor " +
                                               in_quotes(entry.tensor) + " is not in its shard " +
                                               in_quotes(entry.file));
    }
    checkpoint.tensors_.push_back(*tensor);
  }
  return checkpoint;
}

const TensorEntry* Checkpoint::find(std::string_view name) const {
  return find_sorted(tensors_, name);
}

Result<TensorEntry> Checkpoint::require(std::string_view name) const {
  const TensorEntry* entry = find(name);
  if (entry == nullptr) {
    return Status(StatusCode::kNotFound, "tensor " + in_quotes(name) + " is not in the checkpoint");
  }
  if (!entry->dtype) {
    return Status(StatusCode::kUnsupported, "tensor " + in_quotes(name) + " has type " +
                                                in_quotes(entry->dtype_name) +
                                                "; supported are F32, BF16, F16, I8, I32, I64");
  }
  return *entry;
}

Result<TensorEntry> Checkpoint::require(std::string_view name,
                                        std::span<const std::int64_t> shape) const {
  Result<TensorEntry> entry = require(name);
  if (!entry.ok()) return entry;
  if (!std::equal(shape.begin(), shape.end(), entry->shape.begin(), entry->shape.end())) {
    return Status(StatusCode::kInvalidArgument, "tensor " + in_quotes(name) + ": shape " +
                                                    shape_text(shape) + " is required, given " +
                                                    shape_text(entry->shape));
  }
  return entry;
}

std::uint64_t Checkpoint::total_bytes() const {
  std::uint64_t sum = 0;
  for (const TensorEntry& entry : tensors_) sum += entry.bytes.size();
  return sum;
}

}  // namespace replayssm::model
