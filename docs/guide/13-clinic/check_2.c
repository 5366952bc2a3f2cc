/*
 * Checks exercise 2 with tn_explain_training, and by saving and loading.
 */
#include "../check.h"

tn_module *patient_new(tn_tensor *centre);

static tn_tensor *loss(tn_module *m, void *user)
{
    return tn_mean_all(tn_square(tn_forward(m, user)));
}

int main(void)
{
    TN_SCOPE
    {
        tn_tensor *x = tn_randn(TN_SHAPE(8, 2)), *centre = tn_ones(TN_SHAPE(2));
        TN_CHECK(tn_set_name(centre, "centre"));
        tn_module *m = patient_new(centre), *later = patient_new(tn_zeros(TN_SHAPE(2)));
        want(m && later, "patient_new: %s", tn_error());
        tn_explain_report report;
        TN_CHECK(tn_explain_training(NULL, m, NULL, loss, x, &report));
        want(report.findings == 0, "tn_explain_training says\n%s", report.text);
        TN_CHECK(tn_save(m, "patient.safetensors"));
        TN_CHECK(tn_load(later, "patient.safetensors"));
        want_same("what the loaded model gives", tn_forward(later, x), tn_forward(m, x));
        want(tn_parameters(m)->n == 4, "%d parameters: want the four of fc1 and fc2",
             tn_parameters(m)->n);
        tn_module_drop(m), tn_module_drop(later);
    }
    return right();
}
