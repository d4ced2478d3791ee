class Crowd {
  int number_0 = 0;
  int number_1 = 1;
  int number_2 = 2;
  int number_3 = 3;
  int number_4 = 4;
  int number_5 = 5;
  int number_6 = 6;
  int number_7 = 7;
  int number_8 = 8;
  int number_9 = 9;
  int number_10 = 10;
  int number_11 = 11;
  int number_12 = 12;
};
