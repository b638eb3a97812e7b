/* REPLAYSSM_API marks what a shared library offers; everything else in it is hidden. */
#ifndef REPLAYSSM_EXPORT_H
#define REPLAYSSM_EXPORT_H

#if defined(_WIN32)
#define REPLAYSSM_API __declspec(dllexport)
#define REPLAYSSM_HIDDEN
#else
#define REPLAYSSM_API __attribute__((visibility("default")))
#define REPLAYSSM_HIDDEN \
  __attribute__((visibility("hidden"))) /* a part of an offered class that is not */
#endif

#endif /* REPLAYSSM_EXPORT_H */
