// The safetensors header: parse and check.
#include "model/safetensors.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "model/json_value.hpp"
#include "model/utf8.hpp"

namespace replayssm::model {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference reader
constexpr std::size_t kMaxRank = 64;

struct KnownType {
  std::string_view name;
  std::uint64_t bits;
  std::optional<DType> dtype;
};

constexpr std::array<KnownType, 21> kTypes = {{
    {"F32", 32, DType::kF32},
    {"BF16", 16, DType::kBF16},
    {"F16", 16, DType::kF16},
    {"I8", 8, DType::kI8},
    {"I32", 32, DType::kI32},
    {"I64", 64, DType::kI64},
    {"F64", 64, {}},
    {"U8", 8, {}},
    {"BOOL", 8, {}},
    {"I16", 16, {}},
    {"U16", 16, {}},
    {"U32", 32, {}},
    {"U64", 64, {}},
    {"C64", 64, {}},
    {"F8_E4M3", 8, {}},
    {"F8_E5M2", 8, {}},
    {"F8_E8M0", 8, {}},
    {"F8_E4M3FNUZ", 8, {}},
    {"F4", 4, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
}};

const KnownType* find_type(std::string_view name) {
  for (const KnownType& type : kTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

// A tensor with its place in the data, before the places are compared.
struct Placed {
  TensorEntry entry;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// False where value * factor does not fit.
bool multiply(std::uint64_t& value, std::uint64_t factor) {
  if (factor != 0 && value > std::numeric_limits<std::uint64_t>::max() / factor) return false;
  value *= factor;
  return true;
}

class HeaderReader {
 public:
  HeaderReader(std::span<const std::byte> file, std::string_view source)
      : file_(file), source_(source) {}

  Result<std::vector<TensorEntry>> read() {
    if (file_.size() < kLengthBytes) {
      return fail("a safetensors file has at least 8 bytes, given " + std::to_string(file_.size()));
    }
    std::uint64_t header_bytes = 0;
    for (std::size_t i = kLengthBytes; i-- > 0;) {
      header_bytes = (header_bytes << 8) | std::to_integer<std::uint64_t>(file_[i]);
    }
    const std::uint64_t room = file_.size() - kLengthBytes;
    if (header_bytes > kMaxHeaderBytes) {
      return fail("the header claims " + std::to_string(header_bytes) + " bytes; at most " +
                  std::to_string(kMaxHeaderBytes) + " are accepted");
    }
    if (header_bytes > room) {
      return fail("the header claims " + std::to_string(header_bytes) + " bytes, but only " +
                  std::to_string(room) + " follow; the file is cut short or no safetensors file");
    }
    const auto length = static_cast<std::size_t>(header_bytes);
    const std::string_view text(reinterpret_cast<const char*>(file_.data()) + kLengthBytes, length);
    if (text.empty() || text.front() != '{') return fail("the header does not begin with '{'");
    data_ = file_.subspan(kLengthBytes + length);

    Result<JsonValue> parsed = parse_json(text, source_);
    if (!parsed.ok()) return parsed.status();
    const JsonObject* header = parsed->as_object();
    if (header == nullptr) return fail("the header is not an object");
    std::vector<Placed> placed;
    placed.reserve(header->members().size());
    for (const JsonObject::Member& member : header->members()) {
      if (member.key == "__metadata__") {
        REPLAYSSM_RETURN_IF_ERROR(check_metadata(member.value));
        continue;
      }
      Placed tensor;
      REPLAYSSM_RETURN_IF_ERROR(read_tensor(member.key, member.value, tensor));
      placed.push_back(std::move(tensor));
    }
    REPLAYSSM_RETURN_IF_ERROR(check_cover(placed));

    std::vector<TensorEntry> entries;
    entries.reserve(placed.size());
    for (Placed& tensor : placed) entries.push_back(std::move(tensor.entry));
    std::sort(entries.begin(), entries.end(),
              [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
    return entries;
  }

 private:
  [[nodiscard]] Status fail(const std::string& message) const {
    return Status(StatusCode::kDataLoss, std::string(source_) + ": " + message);
  }
  [[nodiscard]] Status fail(const std::string& tensor, const std::string& message) const {
    return fail("tensor " + in_quotes(tensor) + ": " + message);
  }

  [[nodiscard]] Status check_metadata(const JsonValue& value) const {
    const JsonObject* object = value.as_object();
    bool texts = object != nullptr;
    if (texts) {
      for (const auto& member : object->members())
        texts = texts && member.value.as_string() != nullptr;
    }
    return texts ? Status()
                 : fail("__metadata__ must be an object of texts, given " + value.describe());
  }

  [[nodiscard]] Status read_tensor(const std::string& name, const JsonValue& value,
                                   Placed& out) const {
    TensorEntry& entry = out.entry;
    entry.name = name;
    const JsonValue* dtype = value.find("dtype");
    const JsonValue* shape = value.find("shape");
    const JsonValue* offsets = value.find("data_offsets");
    if (dtype == nullptr || dtype->as_string() == nullptr)
      return fail(name, "dtype must be a text, given " + JsonValue::describe(dtype));
    if (shape == nullptr || shape->as_array() == nullptr)
      return fail(name, "shape must be a list, given " + JsonValue::describe(shape));
    if (shape->as_array()->size() > kMaxRank)
      return fail(name, "shape must have at most 64 axes, given " + shape->describe());
    entry.dtype_name = *dtype->as_string();

    std::uint64_t elements = 1;
    bool empty = false;
    bool fits = true;
    for (const JsonValue& extent : *shape->as_array()) {
      const std::int64_t* size = extent.as_integer();
      if (size == nullptr || *size < 0) {
        return fail(name, "a shape holds whole numbers from 0, given " + extent.describe());
      }
      entry.shape.push_back(*size);
      empty = empty || *size == 0;
      // An axis of 0 does not excuse others whose product overflows.
      fits =
          fits && multiply(elements, static_cast<std::uint64_t>(std::max<std::int64_t>(*size, 1)));
    }
    if (!fits)
      return fail(name, "the product of the shape " + shape_text(entry.shape) + " overflows");
    if (empty) elements = 0;

    const JsonValue::Array* pair = offsets == nullptr ? nullptr : offsets->as_array();
    if (pair == nullptr || pair->size() != 2 || (*pair)[0].as_integer() == nullptr ||
        (*pair)[1].as_integer() == nullptr) {
      return fail(name, "data_offsets must be two whole numbers");
    }
    const std::int64_t begin = *(*pair)[0].as_integer();
    const std::int64_t end = *(*pair)[1].as_integer();
    const std::string range =
        "data_offsets [" + std::to_string(begin) + ", " + std::to_string(end) + "]";
    if (begin < 0 || end < begin) return fail(name, range + " are not a range");
    if (static_cast<std::uint64_t>(end) > data_.size()) {
      return fail(name, range + " pass the end of the data at " + std::to_string(data_.size()) +
                            "; the file is cut short or its header is wrong");
    }
    out.begin = static_cast<std::uint64_t>(begin);
    out.end = static_cast<std::uint64_t>(end);
    entry.bytes =
        data_.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    return check_type(elements, out);
  }

  [[nodiscard]] Status check_type(std::uint64_t elements, Placed& out) const {
    TensorEntry& entry = out.entry;
    const KnownType* type = find_type(entry.dtype_name);
    if (type == nullptr) return {};
    entry.dtype = type->dtype;
    std::uint64_t bits = elements;
    if (!multiply(bits, type->bits)) {
      return fail(entry.name, "the size of " + shape_text(entry.shape) + " overflows");
    }
    const std::uint64_t held = out.end - out.begin;
    if (bits % 8 != 0 || bits / 8 != held) {
      return fail(entry.name, entry.dtype_name + " of shape " + shape_text(entry.shape) +
                                  " takes " + std::to_string(bits / 8) +
                                  " bytes, data_offsets hold " + std::to_string(held));
    }
    // Aligned in the file is aligned in memory, because a mapping begins on a page.
    const std::size_t alignment = entry.dtype ? dtype_bytes(*entry.dtype) : 1;
    const std::size_t at = file_.size() - data_.size() + static_cast<std::size_t>(out.begin);
    if (held != 0 && at % alignment != 0) {
      return fail(entry.name, "begins at byte " + std::to_string(at) +
                                  ", which is no multiple of its " + "element size " +
                                  std::to_string(alignment) +
                                  "; save it again with safetensors 0.3 or newer");
    }
    return {};
  }

  // The tensors must cover the data without overlap, hole or rest.
  [[nodiscard]] Status check_cover(std::vector<Placed>& placed) const {
    std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    std::uint64_t covered = 0;
    for (const Placed& tensor : placed) {
      if (tensor.begin != covered) {
        const char* fault =
            tensor.begin < covered ? "overlaps the tensor before it" : "leaves a hole";
        return fail(tensor.entry.name, std::string(fault) + ": begins at " +
                                           std::to_string(tensor.begin) + " where " +
                                           std::to_string(covered) + " is next");
      }
      covered = tensor.end;
    }
    if (covered != data_.size()) {
      return fail(std::to_string(data_.size() - covered) + " bytes after the last tensor");
    }
    return {};
  }

  std::span<const std::byte> file_;
  std::string_view source_;
  std::span<const std::byte> data_;
};

}  // namespace

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

Result<std::vector<TensorEntry>> parse_safetensors(std::span<const std::byte> file,
                                                   std::string_view source) {
  return HeaderReader(file, source).read();
}

}  // namespace replayssm::model
