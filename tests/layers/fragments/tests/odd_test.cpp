// A client that is no client of ours; `is no client` in code is not read.
const char* const text = "its last words: a stranger keeps company";
const int nobody = 0;
