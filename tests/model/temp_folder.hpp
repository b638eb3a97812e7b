// A folder of a test's own, removed at its end, and files in it.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace replayssm::model {

class TempFolder {
 public:
  // `name` must be unique within one test program.
  explicit TempFolder(const std::string& name)
      : path_(std::filesystem::path(REPLAYSSM_TEST_TMP) / name) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  void write(const std::filesystem::path& name, std::string_view content) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream out(path_ / name, std::ios::binary);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
  }

 private:
  std::filesystem::path path_;
};

}  // namespace replayssm::model
