// The two streams of the program: results on standard output, everything else on standard error.
#pragma once

#include <string>
#include <string_view>

#include "replayssm/status.hpp"

namespace replayssm::app {

enum class Verbosity { kError = 0, kWarn = 1, kInfo = 2, kDebug = 3 };

class Console {
 public:
  explicit Console(Verbosity level = Verbosity::kInfo);

  void set_level(Verbosity level) { level_ = level; }
  [[nodiscard]] Verbosity level() const { return level_; }

  // Results. Written at once; false, for this and every later call, when the output is gone.
  bool out(std::string_view text);
  [[nodiscard]] bool out_open() const { return out_error_ == 0; }
  [[nodiscard]] bool out_is_terminal() const { return out_is_terminal_; }
  // Prints why the output could not be written, once, and returns the exit code for it.
  int out_failed();

  // One line each on standard error, if the level allows it.
  void warn(std::string_view message);
  void info(std::string_view message);
  void debug(std::string_view message);
  // Lines that were asked for with an option (--explain): printed at every level.
  void note(std::string_view lines);

  // One line, whatever the message holds; returns `exit_code`.
  int fail(int exit_code, std::string_view message);
  // The same for a failed call of the library; the exit code follows from the status.
  int fail(const Status& status);

  // A line that is overwritten by the next one; only when standard error is a terminal, and while
  // standard output is another device or has printed nothing.
  void progress(std::string_view message);
  void end_progress();

 private:
  void error_line(std::string_view label, std::string_view colour, std::string_view message);
  void write_error(std::string_view text);

  Verbosity level_;
  bool out_is_terminal_ = false;
  bool error_is_terminal_ = false;
  bool colour_ = false;
  bool out_used_ = false;
  bool out_reported_ = false;
  int out_error_ = 0;  // errno of the write that failed
  std::size_t progress_width_ = 0;
};

}  // namespace replayssm::app
