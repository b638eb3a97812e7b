# Helpers for the rooms below tests/.
if(REPLAYSSM_BUILD_TESTS)
  if(CMAKE_CROSSCOMPILING AND EXISTS /usr/src/googletest/googletest/CMakeLists.txt)
    # Debian's googletest holds the sources, from which another machine's library is made.
    add_subdirectory(/usr/src/googletest/googletest "${PROJECT_BINARY_DIR}/googletest" EXCLUDE_FROM_ALL)
  else()
    find_package(GTest REQUIRED)
  endif()
endif()

# A folder that files written by a test may live in; each test gets its own.
set(REPLAYSSM_TEST_TMP "${PROJECT_BINARY_DIR}/test_tmp")

# Settings that the sanitizers read from the environment of a test.
set(_replayssm_test_env
  "ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1"
  "UBSAN_OPTIONS=print_stacktrace=1"
  "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions='${PROJECT_SOURCE_DIR}/tests/support/tsan.supp'")

# replayssm_add_test(NAME name SOURCES a.cpp ... [LIBS target ...] [LABELS label ...]
#                    [TIMEOUT seconds] [ARGS argument ...] [SERIAL])
#
# One GoogleTest executable bin/tests/<name> and one CTest entry of the same name. It links
# replayssm::kernels, replayssm::oracle and gtest_main, and may include from src/, include/ and the
# root. Label `long` marks what ./test --quick and the sanitizers leave out; SERIAL is for tests
# that measure time. Sources see REPLAYSSM_SOURCE_DIR and REPLAYSSM_TEST_TMP as string literals.
function(replayssm_add_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "SERIAL" "NAME;TIMEOUT" "SOURCES;LIBS;LABELS;ARGS")
  if(NOT arg_NAME OR NOT arg_SOURCES OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "replayssm_add_test: needs NAME and SOURCES; "
      "got NAME '${arg_NAME}', SOURCES '${arg_SOURCES}', unknown '${arg_UNPARSED_ARGUMENTS}'")
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  add_executable(${arg_NAME} ${arg_SOURCES})
  replayssm_target_defaults(${arg_NAME} LENIENT)
  target_include_directories(${arg_NAME} PRIVATE
    "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")
  target_compile_definitions(${arg_NAME} PRIVATE
    "REPLAYSSM_SOURCE_DIR=\"${PROJECT_SOURCE_DIR}\""
    "REPLAYSSM_TEST_TMP=\"${REPLAYSSM_TEST_TMP}/${arg_NAME}\"")
  target_link_libraries(${arg_NAME} PRIVATE
    ${arg_LIBS} replayssm::oracle replayssm::kernels Threads::Threads GTest::gtest_main)
  set_target_properties(${arg_NAME} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin/tests")
  file(MAKE_DIRECTORY "${REPLAYSSM_TEST_TMP}/${arg_NAME}")
  add_test(NAME ${arg_NAME} COMMAND ${arg_NAME} ${arg_ARGS}
    WORKING_DIRECTORY "${REPLAYSSM_TEST_TMP}/${arg_NAME}")
  set_tests_properties(${arg_NAME} PROPERTIES
    LABELS "${arg_LABELS}"
    TIMEOUT ${arg_TIMEOUT}
    ENVIRONMENT "${_replayssm_test_env}"
    # A filter or a list that matches nothing must not pass as a green test.
    FAIL_REGULAR_EXPRESSION "\\[==========\\] Running 0 tests")
  if(arg_SERIAL)
    set_tests_properties(${arg_NAME} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

# replayssm_add_fuzzer(NAME name SOURCES a.cpp ... [LIBS target ...] CORPUS folder)
#
# With REPLAYSSM_BUILD_FUZZ a libFuzzer program bin/fuzz/<name>; without it the same function
# LLVMFuzzerTestOneInput runs once over every file of the corpus as an ordinary test, so that each
# input that ever failed is tried by every compiler and sanitizer.
function(replayssm_add_fuzzer)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;CORPUS" "SOURCES;LIBS")
  if(NOT arg_NAME OR NOT arg_SOURCES OR NOT arg_CORPUS OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "replayssm_add_fuzzer: needs NAME, SOURCES and CORPUS; "
      "unknown '${arg_UNPARSED_ARGUMENTS}'")
  endif()
  get_filename_component(corpus "${arg_CORPUS}" ABSOLUTE)
  if(NOT IS_DIRECTORY "${corpus}")
    message(FATAL_ERROR "replayssm_add_fuzzer: ${arg_NAME} has no corpus folder ${corpus}")
  endif()
  add_executable(${arg_NAME} ${arg_SOURCES})
  replayssm_target_defaults(${arg_NAME} LENIENT)
  target_include_directories(${arg_NAME} PRIVATE
    "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")
  target_link_libraries(${arg_NAME} PRIVATE ${arg_LIBS} replayssm::kernels Threads::Threads)
  if(REPLAYSSM_BUILD_FUZZ)
    target_link_options(${arg_NAME} PRIVATE -fsanitize=fuzzer)
    set_target_properties(${arg_NAME} PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin/fuzz")
    # The runner script finds a program's corpus here.
    file(WRITE "${PROJECT_BINARY_DIR}/fuzz_targets/${arg_NAME}" "${corpus}\n")
  else()
    target_sources(${arg_NAME} PRIVATE "${PROJECT_SOURCE_DIR}/tests/support/fuzz_replay_main.cpp")
    set_target_properties(${arg_NAME} PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin/tests")
    add_test(NAME ${arg_NAME} COMMAND ${arg_NAME} "${corpus}")
    set_tests_properties(${arg_NAME} PROPERTIES
      LABELS fuzz TIMEOUT 300 ENVIRONMENT "${_replayssm_test_env}")
  endif()
endfunction()
