// A stand-in for libcublas on host memory: the same symbols, argument order and column-major
// meaning as the real library, computed by the definition. It is stricter where that helps:
// a product without a workspace set since the last change of stream is refused.
#include <cstdint>
#include <cstring>

namespace {

enum Type { F32 = 0, F64 = 1, F16 = 2, BF16 = 14 };
enum Status { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, INTERNAL_ERROR = 14 };

struct Handle {
    void* stream = nullptr;
    bool workspace = false;
    int math = 0;
};
char journal[4096];
size_t written = 0;

void note(char what) {
    if (written + 1 < sizeof journal) journal[written++] = what;
    journal[written] = 0;
}

int64_t size_of(int type) { return type == F64 ? 8 : type == F32 ? 4 : 2; }

double get(const void* p, int type, int64_t i) {
    if (type == F64) return static_cast<const double*>(p)[i];
    if (type == F32) return static_cast<const float*>(p)[i];
    if (type == F16) return float(static_cast<const _Float16*>(p)[i]);
    const uint32_t bits = uint32_t(static_cast<const uint16_t*>(p)[i]) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

void put(void* p, int type, int64_t i, double v) {
    if (type == F64) { static_cast<double*>(p)[i] = v; return; }
    if (type == F32) { static_cast<float*>(p)[i] = float(v); return; }
    if (type == F16) { static_cast<_Float16*>(p)[i] = _Float16(float(v)); return; }
    const float value = float(v);
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bits += 0x7fff + ((bits >> 16) & 1);  // to nearest, ties to even
    static_cast<uint16_t*>(p)[i] = uint16_t(bits >> 16);
}

template <typename Sum>
void product(bool ta, bool tb, int m, int n, int k, const void* alpha, const void* A, int At,
             int64_t lda, const void* B, int Bt, int64_t ldb, const void* beta, void* C,
             int Ct, int64_t ldc) {
    const Sum scale = *static_cast<const Sum*>(alpha), keep = *static_cast<const Sum*>(beta);
    for (int j = 0; j < n; ++j)
        for (int i = 0; i < m; ++i) {
            Sum sum = 0;
            for (int l = 0; l < k; ++l)
                sum += Sum(get(A, At, ta ? l + i * lda : i + l * lda)) *
                       Sum(get(B, Bt, tb ? j + l * ldb : l + j * ldb));
            sum *= scale;
            if (keep != 0) sum += keep * Sum(get(C, Ct, i + j * ldc));
            put(C, Ct, i + j * ldc, sum);
        }
}

}  // namespace

extern "C" {

// For tests: what was called since the last look, a letter each (create, destroy, stream,
// workspace, math mode, gemm, batched), and the next product's status if it is to fail.
int stub_next_status = 0;
const char* stub_journal() {
    static char copy[sizeof journal];
    std::memcpy(copy, journal, sizeof journal);
    written = 0;
    journal[0] = 0;
    return copy;
}

int cublasCreate_v2(void** handle) { *handle = new Handle; note('c'); return SUCCESS; }
int cublasDestroy_v2(void* handle) {
    delete static_cast<Handle*>(handle);
    note('d');
    return SUCCESS;
}
int cublasSetStream_v2(void* handle, void* stream) {
    auto* h = static_cast<Handle*>(handle);
    h->stream = stream;
    h->workspace = false;
    note('s');
    return SUCCESS;
}
int cublasSetWorkspace_v2(void* handle, void* workspace, size_t bytes) {
    if (reinterpret_cast<uintptr_t>(workspace) % 16 || !bytes) return INVALID_VALUE;
    static_cast<Handle*>(handle)->workspace = true;
    note('w');
    return SUCCESS;
}
int cublasSetMathMode(void* handle, int mode) {
    static_cast<Handle*>(handle)->math = mode;
    note('m');
    return SUCCESS;
}
const char* cublasGetStatusString(int status) {
    switch (status) {
        case SUCCESS: return "success";
        case NOT_INITIALIZED: return "the library was not initialized";
        case INVALID_VALUE: return "an unsupported value or parameter was passed to the function";
        default: return "an internal operation failed";
    }
}

int cublasGemmStridedBatchedEx(void* handle, int ta, int tb, int m, int n, int k,
                               const void* alpha, const void* A, int At, int lda, int64_t as,
                               const void* B, int Bt, int ldb, int64_t bs, const void* beta,
                               void* C, int Ct, int ldc, int64_t cs, int count, int compute,
                               int) {
    note('b');
    if (!handle) return NOT_INITIALIZED;
    if (!static_cast<Handle*>(handle)->workspace) return INTERNAL_ERROR;
    if (int status = stub_next_status) { stub_next_status = 0; return status; }
    if (m < 1 || n < 1 || k < 1 || count < 1 || At != Bt) return INVALID_VALUE;
    if (lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m) return INVALID_VALUE;
    if (count > 1 && cs < (n == 1 ? m : 1)) return INVALID_VALUE;
    if ((compute == 70) != (At == F64) || (compute == 77 && At != F32)) return INVALID_VALUE;
    if (compute != 68 && compute != 70 && compute != 77) return INVALID_VALUE;
    if (Ct != At && !(Ct == F32 && size_of(At) == 2)) return INVALID_VALUE;
    for (int64_t i = 0; i < count; ++i) {
        const char* a = static_cast<const char*>(A) + i * as * size_of(At);
        const char* b = static_cast<const char*>(B) + i * bs * size_of(Bt);
        char* c = static_cast<char*>(C) + i * cs * size_of(Ct);
        if (compute == 70)
            product<double>(ta, tb, m, n, k, alpha, a, At, lda, b, Bt, ldb, beta, c, Ct, ldc);
        else
            product<float>(ta, tb, m, n, k, alpha, a, At, lda, b, Bt, ldb, beta, c, Ct, ldc);
    }
    return SUCCESS;
}

int cublasGemmEx(void* handle, int ta, int tb, int m, int n, int k, const void* alpha,
                 const void* A, int At, int lda, const void* B, int Bt, int ldb,
                 const void* beta, void* C, int Ct, int ldc, int compute, int algo) {
    const int status =
        cublasGemmStridedBatchedEx(handle, ta, tb, m, n, k, alpha, A, At, lda, 0, B, Bt, ldb,
                                   0, beta, C, Ct, ldc, 0, 1, compute, algo);
    journal[written - 1] = 'g';
    return status;
}

}  // extern "C"
