#pragma once

struct LaunchOptions {
  int field_0 = 0;
  int field_1 = 0;
  int field_2 = 0;
  int field_3 = 0;
  int field_4 = 0;
  int field_5 = 0;

  // The rest.

  int field_6 = 0;
  int field_7 = 0;
  int field_8 = 0;
  int field_9 = 0;
  int field_10 = 0;
};
