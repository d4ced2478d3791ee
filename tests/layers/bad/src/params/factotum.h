// The constructors, the override and the field are not methods of its own.
class Factotum : public Interface {
 public:
  Factotum();
  ~Factotum();
  void from_interface() override;
  int method_0() { return 0; }
  int method_1(int number = {}) const;
  int method_2() { return 0; }
  int method_3(int number = {}) const;
  int method_4() { return 0; }
  int method_5(int number = {}) const;
  int method_6() { return 0; }
  int method_7(int number = {}) const;
  int method_8() { return 0; }
  int method_9(int number = {}) const;
  int method_10() { return 0; }
  int method_11(int number = {}) const;
  int method_12() { return 0; }
  int method_13(int number = {}) const;
  int method_14() { return 0; }
  int method_15(int number = {}) const;
  int method_16() { return 0; }
  int method_17(int number = {}) const;
  int method_18() { return 0; }
  int method_19(int number = {}) const;
  int method_20() { return 0; }
  int method_21(int number = {}) const;
  int method_22() { return 0; }
  int method_23(int number = {}) const;
  int method_24() { return 0; }
  int method_25(int number = {}) const;
 private:
  std::function<void(int)> field_ = nullptr;
};
