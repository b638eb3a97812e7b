// The two streams of the program.
#include "console.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "exit_code.hpp"
#include "text.hpp"

namespace replayssm::app {
namespace {

// 0, or the errno of the write that failed.
int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (written < 0 && errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

bool environment_has(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before any thread
  return value != nullptr && *value != '\0';
}

bool terminal_is_dumb() {
  const char* term = std::getenv("TERM");  // NOLINT(concurrency-mt-unsafe): before any thread
  return term == nullptr || std::strcmp(term, "dumb") == 0;
}

}  // namespace

Console::Console(Verbosity level)
    : level_(level),
      out_is_terminal_(isatty(STDOUT_FILENO) == 1),
      error_is_terminal_(isatty(STDERR_FILENO) == 1),
      colour_(error_is_terminal_ && !environment_has("NO_COLOR") && !terminal_is_dumb()) {}

bool Console::out(std::string_view text) {
  end_progress();
  if (out_error_ != 0) return false;
  out_used_ = out_used_ || !text.empty();
  out_error_ = write_all(STDOUT_FILENO, text);
  return out_error_ == 0;
}

int Console::out_failed() {
  if (out_reported_) return kExitFailure;
  out_reported_ = true;
  if (out_error_ == EPIPE) {
    return fail(kExitFailure, "standard output was closed by its reader; stopped");
  }
  return fail(kExitFailure,
              fmt::format("cannot write to standard output: {}; stopped",
                          std::strerror(out_error_)));  // NOLINT(concurrency-mt-unsafe)
}

void Console::write_error(std::string_view text) {
  // Nothing is left to say where standard error itself is gone.
  (void)write_all(STDERR_FILENO, text);
}

void Console::error_line(std::string_view label, std::string_view colour,
                         std::string_view message) {
  end_progress();
  if (colour_) {
    write_error(fmt::format("replayssm: {}{}:\x1b[0m {}\n", colour, label, one_line(message)));
  } else {
    write_error(fmt::format("replayssm: {}: {}\n", label, one_line(message)));
  }
}

void Console::warn(std::string_view message) {
  if (level_ >= Verbosity::kWarn) error_line("warning", "\x1b[33m", message);
}

void Console::info(std::string_view message) {
  if (level_ < Verbosity::kInfo) return;
  end_progress();
  write_error(fmt::format("{}\n", one_line(message)));
}

void Console::debug(std::string_view message) {
  if (level_ >= Verbosity::kDebug) error_line("debug", "\x1b[2m", message);
}

void Console::note(std::string_view lines) {
  end_progress();
  write_error(lines);
  if (!lines.empty() && lines.back() != '\n') write_error("\n");
}

int Console::fail(int exit_code, std::string_view message) {
  error_line("error", "\x1b[1;31m", message);
  return exit_code;
}

int Console::fail(const Status& status) {
  return fail(exit_code_of(status.code()), status.message());
}

void Console::progress(std::string_view message) {
  if (!error_is_terminal_ || level_ < Verbosity::kInfo) return;
  if (out_is_terminal_ && out_used_) return;
  const std::string line = one_line(message);
  const std::size_t pad = progress_width_ > line.size() ? progress_width_ - line.size() : 0;
  write_error(fmt::format("\r{}{}", line, std::string(pad, ' ')));
  progress_width_ = line.size();
}

void Console::end_progress() {
  if (progress_width_ == 0) return;
  write_error(fmt::format("\r{}\r", std::string(progress_width_, ' ')));
  progress_width_ = 0;
}

}  // namespace replayssm::app
