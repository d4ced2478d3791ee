// A client that is no client of ours; `is no client` in code is not read.
const char* const text = "its last words: a stranger keeps company";
const int nobody = 0;
const char* const law = "size is {}; it is at least {}";
const char* const ended = "the run goes on from step {}";
