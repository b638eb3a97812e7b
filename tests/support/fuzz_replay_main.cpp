// Runs a fuzz target once over every file of the folders or files given, without libFuzzer.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

// False where the file cannot be read.
bool run_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    std::fprintf(stderr, "error: cannot read %s\n", path.c_str());
    return false;
  }
  const std::vector<char> bytes((std::istreambuf_iterator<char>(in)),
                                std::istreambuf_iterator<char>());
  // An exact-size copy, so that the address sanitizer sees a read past the end. The name comes
  // first: after a crash the last line says which input it was.
  std::printf("input %s (%zu bytes)\n", path.c_str(), bytes.size());
  std::fflush(stdout);
  const std::vector<std::uint8_t> exact(bytes.begin(), bytes.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < argc; ++i) {
    const std::filesystem::path root(argv[i]);
    std::error_code error;
    if (std::filesystem::is_directory(root, error)) {
      for (const auto& entry : std::filesystem::directory_iterator(root, error)) {
        if (entry.is_regular_file(error)) files.push_back(entry.path());
      }
    } else {
      files.push_back(root);
    }
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) {
    std::fprintf(stderr, "error: no corpus file given; name a folder or files\n");
    return 1;
  }
  int failed = 0;
  for (const auto& file : files) failed += run_file(file) ? 0 : 1;
  std::printf("%zu inputs passed, %d failed\n", files.size() - static_cast<std::size_t>(failed),
              failed);
  return failed == 0 ? 0 : 1;
}
