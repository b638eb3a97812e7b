# One sanitizer for everything in this build (a program must not mix instrumented and plain code).
if(REPLAYSSM_SANITIZE STREQUAL "address")
  set(_replayssm_flags -fsanitize=address)
elseif(REPLAYSSM_SANITIZE STREQUAL "undefined")
  # No recovery: a finding must fail the test, not only print a line.
  set(_replayssm_flags -fsanitize=undefined,float-cast-overflow -fno-sanitize-recover=all)
elseif(REPLAYSSM_SANITIZE STREQUAL "thread")
  set(_replayssm_flags -fsanitize=thread)
elseif(NOT REPLAYSSM_SANITIZE STREQUAL "")
  message(FATAL_ERROR "replayssm: REPLAYSSM_SANITIZE=${REPLAYSSM_SANITIZE} is not known; "
    "use address, undefined, thread or nothing")
endif()
if(NOT REPLAYSSM_SANITIZE STREQUAL "")
  add_compile_options(${_replayssm_flags} -fno-omit-frame-pointer)
  add_link_options(${_replayssm_flags})
endif()

if(REPLAYSSM_BUILD_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "replayssm: REPLAYSSM_BUILD_FUZZ=ON needs clang for libFuzzer, but the "
      "compiler is ${CMAKE_CXX_COMPILER_ID}; configure with the preset 'fuzz'")
  endif()
  if(NOT REPLAYSSM_SANITIZE STREQUAL "")
    message(FATAL_ERROR "replayssm: a fuzzing build brings its own sanitizers; "
      "leave REPLAYSSM_SANITIZE empty")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined
    -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()
