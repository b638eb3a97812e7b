// POSIX files behind MappedFile and read_text_file.
#include "model/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <limits>
#include <system_error>
#include <utility>

#include "model/utf8.hpp"

namespace replayssm::model {
namespace {

// Closes on destruction.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

Status system_error(StatusCode code, const std::filesystem::path& path, const char* what,
                    int error) {
  // What the process lacks says nothing about the file.
  if (error == ENOMEM || error == EMFILE || error == ENFILE) code = StatusCode::kResourceExhausted;
  return Status(code, path_in_quotes(path.native()) + ": " + what + ": " +
                          std::system_category().message(error));
}

struct OpenFile {
  Descriptor descriptor;
  std::size_t size = 0;
};

Result<OpenFile> open_regular(const std::filesystem::path& path) {
  // Non-blocking, so that a named pipe is refused below and not waited for.
  Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (descriptor.get() < 0) {
    const int error = errno;
    const bool absent = error == ENOENT || error == ENOTDIR;
    return system_error(absent ? StatusCode::kNotFound : StatusCode::kDataLoss, path,
                        "cannot be opened", error);
  }
  struct stat info {};
  if (::fstat(descriptor.get(), &info) != 0) {
    return system_error(StatusCode::kDataLoss, path, "cannot be examined", errno);
  }
  if (!S_ISREG(info.st_mode)) {
    return Status(StatusCode::kInvalidArgument,
                  path_in_quotes(path.native()) + ": a regular file is required");
  }
  return OpenFile{std::move(descriptor), static_cast<std::size_t>(info.st_size)};
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  Result<OpenFile> file = open_regular(path);
  if (!file.ok()) return file.status();
  if (file->size == 0) return MappedFile();
  void* address = ::mmap(nullptr, file->size, PROT_READ, MAP_PRIVATE, file->descriptor.get(), 0);
  if (address == MAP_FAILED) {
    return system_error(StatusCode::kDataLoss, path, "cannot be mapped", errno);
  }
  return MappedFile(static_cast<const std::byte*>(address), file->size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

Result<std::string> read_text_file(const std::filesystem::path& path, std::size_t max_bytes) {
  Result<OpenFile> file = open_regular(path);
  if (!file.ok()) return file.status();
  const auto too_large = [&](const std::string& size) {
    return Status(StatusCode::kInvalidArgument, path_in_quotes(path.native()) + ": at most " +
                                                    std::to_string(max_bytes) +
                                                    " bytes are accepted, given " + size);
  };
  if (file->size > max_bytes) return too_large(std::to_string(file->size));
  std::string text(file->size, '\0');
  std::size_t filled = 0;
  while (filled < text.size()) {
    const ::ssize_t got =
        ::read(file->descriptor.get(), text.data() + filled, text.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(StatusCode::kDataLoss, path, "cannot be read", errno);
    if (got == 0) break;  // the file shrank since fstat: keep what there is
    filled += static_cast<std::size_t>(got);
  }
  text.resize(filled);
  return text;
}

}  // namespace replayssm::model
