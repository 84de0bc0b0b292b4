#include <math.h>
#include <stdbool.h>
#include <stdint.h>
static inline float max_f32(float a, float b) { return a > b ? a : b; }

void projection_y(const float *restrict x, const float *restrict w, const float *restrict bias, float *restrict y, const int64_t *restrict offsets, const int64_t batches)
{
    const int64_t offsets_entry = offsets[batches];
    #pragma omp parallel for schedule(dynamic, 1)
    for (int64_t batch_row = 0; batch_row < offsets_entry; ++batch_row) {
        for (int64_t out = 0; out < 4; ++out) {
            float y_acc = 0.0f;
            for (int64_t inner = 0; inner < 3; ++inner) {
                y_acc = y_acc + x[batch_row * 3 + inner] * w[inner * 4 + out];
            }
            y[batch_row * 4 + out] = max_f32(y_acc + bias[out], 0.0f);
        }
    }
}
