# The libraries beneath replayssm::model; also read by the installed package.
find_package(PkgConfig REQUIRED)
pkg_check_modules(REPLAYSSM_PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8>=10.30)
pkg_check_modules(REPLAYSSM_UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc>=2.6)
find_package(OneDnn 2.6 REQUIRED)
