#pragma once

#include <curl/curl.h>

namespace accelerate::detail {

/// The functions of libcurl that are used. A shared libcurl is loaded at the
/// first request: it needs two dozen libraries, and loading them all would
/// double the time that the command line tool takes to start.
struct CurlLibrary {
  decltype(&curl_easy_init) easy_init;
  decltype(&curl_easy_cleanup) easy_cleanup;
  decltype(&curl_easy_reset) easy_reset;
  decltype(&curl_easy_setopt) easy_setopt;
  decltype(&curl_easy_perform) easy_perform;
  decltype(&curl_easy_getinfo) easy_getinfo;
  decltype(&curl_easy_strerror) easy_strerror;
  decltype(&curl_slist_append) slist_append;
  decltype(&curl_slist_free_all) slist_free_all;
};

/// Throws Error if libcurl cannot be loaded. Thread-safe.
const CurlLibrary& libcurl();

}  // namespace accelerate::detail
