// A class without a call and without a reason, and one whose method's argument
// is not known.
namespace accelerate {

class Forgotten {
 public:
  void call();
};

class Optimizer {
 public:
  void load(const Unknown& unknown);
};

}  // namespace accelerate
