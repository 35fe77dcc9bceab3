#pragma once

namespace app {

// Trains a tiny classifier with Lathe's Trainer and a callback of the program's own. Returns true
// if the callback ended the training as soon as the loss was low.
bool LearnsWithTrainer();

}  // namespace app
